#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Tracing: spans of time on the lanes of a rank.
//
//   const TraceLane lane(world.rank(), "all-reduce");  // this thread's, here
//   for (...) {
//     const TraceSpan span("all-reduce", TraceCategory::kCommunication,
//     bucket);
//     ...
//   }
//
// Use a std::optional<TraceSpan> for a span that begins in one call and ends in
// another. A span costs one relaxed load (2 ns) if nothing records, and 0.1 us
// otherwise.
namespace lockstep {

/// The kind of work in a span.
enum class TraceCategory : uint8_t {
  kStep,           ///< a whole step
  kCompute,        ///< forward, backward, update
  kCommunication,  ///< communication with other ranks
  kWait,           ///< waiting for other ranks or data
};

/// Returns "step", "compute", "communication" or "wait".
const char* to_string(TraceCategory category);
/// Returns the category named `name`. Throws InvalidArgument if there is none.
TraceCategory parse_trace_category(std::string_view name);

/// Returns the monotonic clock in nanoseconds. All processes of a host share
/// it.
int64_t trace_clock_ns();

/// Sets the lane for the spans of this thread for as long as the object exists.
/// The destructor restores the previous lane. The lanes of a rank are the rows
/// of its timeline: "main", "cpu:0", "all-reduce". Spans are recorded only if
/// the thread has a lane and the rank has a TraceRecording. Threads may share a
/// lane if they don't use it at the same time.
class TraceLane {
 public:
  /// `rank` is the rank of this process or thread, or 0 if there are no ranks.
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

/// Records the time from its construction to its destruction, on the lane that
/// its thread has at the end. Spans may be nested. For a GPU this is the host's
/// time, so it ends when the work is queued, unless the code waits for it.
class TraceSpan {
 public:
  /// `name` must be a literal. `index` is the index of the shard, bucket or
  /// step, or -1.
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

/// The recorded spans of a rank.
struct TraceLog {
  /// A period of time in which a lane did one thing.
  struct Span {
    size_t lane = 0;  ///< in `lanes`
    std::string name;
    TraceCategory category = TraceCategory::kCompute;
    int64_t index = -1;  ///< index of the shard, bucket or step; -1: none
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  std::vector<std::string> lanes;  ///< in the order of their first use
  std::vector<Span> spans;  ///< sorted by begin; outer spans before inner ones
  int64_t dropped = 0;      ///< number of older spans that did not fit
};

/// Records the spans of a rank that end while the object exists. If there are
/// more than `max_spans`, the oldest are dropped. If the ranks are threads of
/// one process, each rank has its own recording.
class TraceRecording {
 public:
  static constexpr size_t kMaxSpans = 100'000;

  /// Throws InvalidArgument if this process already records `rank`.
  explicit TraceRecording(int rank, size_t max_spans = kMaxSpans);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

  /// Removes spans that ended before the time `ns` of trace_clock_ns().
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
  std::deque<Kept> spans_;  // sorted by end
  int64_t dropped_ = 0;
};

}  // namespace lockstep
