#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/device/device.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/options.h"
#include "lockstep/train/record/step_recorder.h"
#include "lockstep/train/report/rank_trace.h"

namespace lockstep::train {

/// Records the steps of a run for the trace that its options ask for, or else
/// its first steps, for the time line of its report.
class TraceRecorder : public Callback {
 public:
  /// Begins to record after `step` steps. `devices`: this rank's devices.
  /// Throws InvalidArgument if a trace is asked for and this process already
  /// records the rank.
  TraceRecorder(const World& world, const std::vector<Device>& devices,
                const LogOptions& options, int64_t step);

  void before_batch(const RunState& at) override;
  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;

  void stop();
  /// Returns the recordings of all ranks if a trace was asked for, else those
  /// of a typical step. Collective.
  std::vector<RankTrace> gather() const;

 private:
  World world_;
  std::vector<Device> devices_;
  bool has_trace_;
  int64_t first_step_;    // steps done when the recording began
  int64_t begin_ns_ = 0;  // when the next step began to read its batch
  std::optional<StepRecorder> recorder_;
  std::optional<RankTrace> recorded_;  // set by stop()
};

}  // namespace lockstep::train
