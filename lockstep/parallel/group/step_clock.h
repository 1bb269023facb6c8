#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/group/data_parallel_options.h"

namespace lockstep {

/// Measures the phases of a step or a forward, and shows them in the trace.
class StepClock {
 public:
  enum class Phase {
    // A worker measures these for each of its shards.
    kReplicate,
    kForward,
    kBackward,
    // The caller measures these.
    kScatter,
    kGather,
    kReduce,
    kUpdate,
  };

  /// Measures a phase as long as it exists.
  class Span {
   public:
    ~Span() {
      if (total_) *total_ += watch_.seconds();
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    friend class StepClock;
    Span(double* total, const char* name, int64_t index) : total_(total) {
      if (name) trace_.emplace(name, TraceCategory::kCompute, index);
    }

    double* total_;
    Stopwatch watch_;
    std::optional<TraceSpan> trace_;
  };

  /// `watcher`, if it is set, is told of phases that are entered.
  StepClock(size_t workers, std::function<void(StepPhase)> watcher)
      : watcher_(std::move(watcher)), shards_(workers) {}

  /// Sets all times to 0.
  void restart();
  /// Measures a phase of the caller. Without a `name`, the trace does not show
  /// it.
  [[nodiscard]] Span time(Phase phase, const char* name = nullptr) {
    return {&(caller_.*time_of(phase)), name, -1};
  }
  /// Measures a phase of shard `index` on `worker`.
  [[nodiscard]] Span time_shard(Phase phase, size_t worker, int64_t index,
                                const char* name = nullptr) {
    return {&(shards_[worker].*time_of(phase)), name, index};
  }
  /// Measures nothing, for what is not part of a step.
  [[nodiscard]] static Span nothing() { return {nullptr, nullptr, -1}; }
  /// Tells the watcher.
  void enter(StepPhase phase) const {
    if (watcher_) watcher_(phase);
  }
  /// Returns the times since restart(): the phases of the caller, and those of
  /// the worker that took longest, for which the others waited. The longest
  /// forward and the longest backward may come from two workers, and their sum
  /// may be longer than the step.
  PhaseTimes times() const;

 private:
  static double PhaseTimes::*time_of(Phase phase);

  std::function<void(StepPhase)> watcher_;
  PhaseTimes caller_;
  std::vector<PhaseTimes> shards_;  // by worker
};

}  // namespace lockstep
