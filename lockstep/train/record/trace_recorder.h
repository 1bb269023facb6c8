#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

/// Records the last steps of a rank, and the time between them.
class StepRecorder {
 public:
  /// `steps`: maximum number of steps, at least 1. `devices`: this rank's
  /// devices.
  StepRecorder(const ProcessGroup& world, std::vector<Device> devices,
               int64_t steps);

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
  ProcessGroup world_;
  std::vector<Device> devices_;
  size_t steps_;
  std::deque<int64_t> begins_ns_;  // start times of the steps that are kept
  TraceRecording recording_;
};

/// Records the steps of a run for the trace that its options ask for, or else
/// its first steps, for the time line of its report.
class TraceRecorder : public Callback {
 public:
  /// Begins to record after `step` steps. `devices`: this rank's devices.
  /// Throws InvalidArgument if a trace is asked for and this process already
  /// records the rank.
  TraceRecorder(const ProcessGroup& world, const std::vector<Device>& devices,
                const LogOptions& options, int64_t step);

  void before_batch(const RunState& at) override;
  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;

  void stop();
  /// Returns the recordings of all ranks if a trace was asked for, else those
  /// of a typical step. Collective.
  std::vector<RankTrace> gather() const;

 private:
  ProcessGroup world_;
  std::vector<Device> devices_;
  bool has_trace_;
  int64_t first_step_;    // steps done when the recording began
  int64_t begin_ns_ = 0;  // when the next step began to read its batch
  std::optional<StepRecorder> recorder_;
  std::optional<RankTrace> recorded_;  // set by stop()
};

}  // namespace lockstep::training
