#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/train/rank_trace.h"

namespace lockstep::train {

/// Records the last steps of a rank, and what is between them.
class StepRecorder {
 public:
  /// `steps`: at most, 1 or more. `devices`: this rank's.
  StepRecorder(const World& world, std::vector<Device> devices, int64_t steps);

  /// Before each step: what belongs to it began at `begin_ns` of
  /// trace_clock_ns().
  void begin_step(int64_t begin_ns = trace_clock_ns());
  /// Forgets what there is: it was warm-up.
  void restart();
  /// What there is of this rank.
  RankTrace own() const;
  /// Of all ranks, on every rank. Collective.
  std::vector<RankTrace> gather() const;

 private:
  World world_;
  std::vector<Device> devices_;
  size_t steps_;
  std::deque<int64_t> begins_ns_;  // of the steps that are kept
  TraceRecording recording_;
};

}  // namespace lockstep::train
