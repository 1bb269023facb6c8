#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/train/report/rank_trace.h"

namespace lockstep::train {

/// Records the last steps of a rank, and the time between them.
class StepRecorder {
 public:
  /// `steps`: maximum number of steps, at least 1. `devices`: this rank's
  /// devices.
  StepRecorder(const World& world, std::vector<Device> devices, int64_t steps);

  /// Marks the start of a step. Its work began at `begin_ns` of
  /// trace_clock_ns().
  void begin_step(int64_t begin_ns = trace_clock_ns());
  /// Drops what was recorded, which was warm-up.
  void restart();
  /// Returns the recording of this rank.
  RankTrace own() const;
  /// Returns the recordings of all ranks, on every rank. Collective.
  std::vector<RankTrace> gather() const;

 private:
  World world_;
  std::vector<Device> devices_;
  size_t steps_;
  std::deque<int64_t> begins_ns_;  // start times of the steps that are kept
  TraceRecording recording_;
};

}  // namespace lockstep::train
