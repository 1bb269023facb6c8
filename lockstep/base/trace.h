#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// When things happen: spans of time on the lanes of a rank.
//
//   const TraceLane lane(world.rank(), "all-reduce");  // this thread's, here
//   for (...) {
//     const TraceSpan span("all-reduce", TraceCategory::kCommunication,
//     bucket);
//     ...
//   }
//
// What begins in one call and ends in another is a std::optional<TraceSpan>.
// Where nothing records, a span is one relaxed load (2 ns), else 0.1 us.
namespace lockstep {

/// What a span's time went to.
enum class TraceCategory : uint8_t {
  kStep,           ///< a whole step
  kCompute,        ///< forward, backward, update
  kCommunication,  ///< with other ranks
  kWait,           ///< for other ranks, or for data
};

/// "step", "compute", "communication", "wait".
const char* to_string(TraceCategory category);
/// The reverse; throws InvalidArgument.
TraceCategory parse_trace_category(std::string_view name);

/// Nanoseconds of the monotonic clock, which the processes of a host share.
int64_t trace_clock_ns();

/// The lane on which the spans of this thread are while it lives; then the one
/// before is again. A rank's lanes are the rows of its time line: "main",
/// "cpu:0", "all-reduce". Spans of a thread that has no lane are not recorded,
/// nor those of a rank that nobody records. Threads may share a lane if they
/// use it one after another.
class TraceLane {
 public:
  /// `rank`: of a process or of a thread; 0 where there are none.
  TraceLane(int rank, std::string_view name);
  ~TraceLane();
  TraceLane(const TraceLane&) = delete;
  TraceLane& operator=(const TraceLane&) = delete;

 private:
  int outer_rank_;
  std::string outer_name_;
};

namespace detail {
inline std::atomic<int> trace_recordings{0};
}  // namespace detail

/// From its making to its end, on the lane that its thread then has. Nests.
/// On a GPU it is the host's time: until the work is queued, unless the code
/// in it waits.
class TraceSpan {
 public:
  /// `name`: a literal. `index`: of the shard, bucket or step; -1: none.
  explicit TraceSpan(const char* name, TraceCategory category,
                     int64_t index = -1)
      : name_(name),
        index_(index),
        begin_ns_(detail::trace_recordings.load(std::memory_order_relaxed) == 0
                      ? kNotRecorded
                      : trace_clock_ns()),
        category_(category) {}
  ~TraceSpan() {
    if (begin_ns_ != kNotRecorded) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  static constexpr int64_t kNotRecorded = INT64_MIN;
  void end() const;

  const char* name_;
  int64_t index_;
  int64_t begin_ns_;
  TraceCategory category_;
};

/// What was recorded of a rank.
struct TraceLog {
  /// A stretch of time in which something was done in a lane.
  struct Span {
    size_t lane = 0;  ///< in `lanes`
    std::string name;
    TraceCategory category = TraceCategory::kCompute;
    int64_t index = -1;  ///< of the shard, bucket or step; -1: none
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  std::vector<std::string>
      lanes;                ///< in the order in which they were first used
  std::vector<Span> spans;  ///< by begin, an outer one before an inner
  int64_t dropped = 0;      ///< older spans, for which there was no room
};

/// Records a rank's spans while it lives: those that end. Of more than
/// `max_spans` the oldest are dropped. Ranks that are threads of one process
/// each have one.
class TraceRecording {
 public:
  static constexpr size_t kMaxSpans = 100'000;

  /// Throws InvalidArgument if this process records `rank` already.
  explicit TraceRecording(int rank, size_t max_spans = kMaxSpans);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

  /// Forgets spans that ended before `ns` of trace_clock_ns().
  void forget_before(int64_t ns);
  TraceLog log() const;

 private:
  friend class TraceSpan;
  struct Kept {
    size_t lane;
    const char* name;
    TraceCategory category;
    int64_t index, begin_ns, end_ns;
  };
  void add(const std::string& lane, Kept span);

  const int rank_;
  const size_t max_spans_;
  std::map<std::string, size_t> lanes_;
  std::deque<Kept> spans_;  // by end
  int64_t dropped_ = 0;
};

}  // namespace lockstep
