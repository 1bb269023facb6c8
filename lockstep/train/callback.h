#pragma once

#include <cstdint>

#include "lockstep/checkpoint/saved_state.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_report.h"

namespace lockstep::train {

/// Where a run is when it calls a Callback.
struct RunState {
  int64_t step = 0;   ///< steps done
  int64_t epoch = 0;  ///< counted from 0
  int64_t total_steps = 0;
  double lr = 0;  ///< of the last step
};

/// What a run calls on every rank, in its main thread, with the same numbers on
/// all of them. Steps that are repeated after the loss of a rank are told
/// again.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void before_epoch(const RunState&) {}
  /// With the means over the epoch.
  virtual void after_epoch(const RunState&, const Metrics&) {}
  virtual void before_step(const RunState&) {}
  /// With the means over the step's batch.
  virtual void after_step(const RunState&, const Metrics&) {}
  virtual void before_evaluation(const RunState&) {}
  virtual void after_evaluation(const RunState&, const TestReport&) {}
  virtual void before_checkpoint(const RunState&) {}
  /// The checkpoint is copied; it is written beside the next steps.
  virtual void after_checkpoint(const RunState&) {}

  /// Asked after each step: true ends the run as if max_steps were reached,
  /// after the next step. If it is true on one rank, all end.
  virtual bool wants_to_stop() const { return false; }

  /// What it has to remember when a run goes on. The names and shapes must be
  /// the same at every step.
  virtual OptimizerState state() const { return {}; }
  virtual void load_state(const OptimizerState&) {}
};

}  // namespace lockstep::train
