#include "lockstep/base/trace.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array kCategories = {"step", "compute", "communication", "wait"};
constexpr int kNoRank = -1;

struct Lane {
  int rank = kNoRank;
  std::string name;
};

Lane& lane_of_thread() {
  thread_local Lane lane;
  return lane;
}

// All active recordings. The mutex also guards their content, because they are
// written rarely.
struct Recordings {
  std::mutex mutex;
  std::map<int, TraceRecording*> by_rank;
};

// Never destroyed: threads may still end spans while the process ends.
Recordings& recordings() {
  static auto& instance = *new Recordings;
  return instance;
}

}  // namespace

const char* to_string(TraceCategory category) {
  return kCategories.at(static_cast<size_t>(category));
}

TraceCategory parse_trace_category(std::string_view name) {
  const auto found = std::find(kCategories.begin(), kCategories.end(), name);
  if (found == kCategories.end()) {
    throw InvalidArgument("trace",
                          {.code = ErrorCode::kUnknownName,
                           .what = "there is no such category of spans",
                           .expected = "step, compute, communication or wait",
                           .got = fmt::format("'{}'", name)});
  }
  return static_cast<TraceCategory>(found - kCategories.begin());
}

int64_t trace_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TraceLane::TraceLane(int rank, std::string_view name) {
  Lane& lane = lane_of_thread();
  outer_rank_ = std::exchange(lane.rank, rank);
  outer_name_ = std::exchange(lane.name, std::string(name));
}

TraceLane::~TraceLane() {
  Lane& lane = lane_of_thread();
  lane.rank = outer_rank_;
  lane.name.swap(outer_name_);
}

void TraceSpan::end() const {
  const Lane& lane = lane_of_thread();
  if (lane.rank == kNoRank) return;
  const int64_t end_ns = trace_clock_ns();
  const std::lock_guard lock(recordings().mutex);
  const auto found = recordings().by_rank.find(lane.rank);
  if (found == recordings().by_rank.end()) return;
  found->second->add(lane.name, {.lane = 0,
                                 .name = name_,
                                 .category = category_,
                                 .index = index_,
                                 .begin_ns = begin_ns_,
                                 .end_ns = end_ns});
}

TraceRecording::TraceRecording(int rank, size_t max_spans)
    : rank_(rank), max_spans_(std::max<size_t>(max_spans, 1)) {
  const std::lock_guard lock(recordings().mutex);
  if (!recordings().by_rank.try_emplace(rank, this).second) {
    throw InvalidArgument(
        "trace", {.code = ErrorCode::kMisuse,
                  .what = fmt::format("rank {} is recorded already", rank),
                  .expected = "one recording of a rank at a time"});
  }
  ++detail::trace_recordings;
}

TraceRecording::~TraceRecording() {
  const std::lock_guard lock(recordings().mutex);
  --detail::trace_recordings;
  recordings().by_rank.erase(rank_);
}

void TraceRecording::add(const std::string& lane, Kept span) {
  span.lane = lanes_.try_emplace(lane, lanes_.size()).first->second;
  if (spans_.size() == max_spans_) {
    spans_.pop_front();
    ++dropped_;
  }
  spans_.push_back(span);
}

void TraceRecording::forget_before(int64_t ns) {
  const std::lock_guard lock(recordings().mutex);
  while (!spans_.empty() && spans_.front().end_ns < ns) spans_.pop_front();
}

TraceLog TraceRecording::log() const {
  TraceLog log;
  {
    const std::lock_guard lock(recordings().mutex);
    log.lanes.resize(lanes_.size());
    for (const auto& [name, place] : lanes_) log.lanes[place] = name;
    for (const Kept& span : spans_) {
      log.spans.push_back({.lane = span.lane,
                           .name = span.name,
                           .category = span.category,
                           .index = span.index,
                           .begin_ns = span.begin_ns,
                           .end_ns = span.end_ns});
    }
    log.dropped = dropped_;
  }
  // If two spans begin at the same time, the one that ends later is the outer.
  std::stable_sort(log.spans.begin(), log.spans.end(),
                   [](const TraceLog::Span& a, const TraceLog::Span& b) {
                     return std::pair(a.begin_ns, -a.end_ns) <
                            std::pair(b.begin_ns, -b.end_ns);
                   });
  return log;
}

}  // namespace lockstep
