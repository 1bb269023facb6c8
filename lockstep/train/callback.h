#pragma once

#include <cstdint>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_report.h"

namespace lockstep::training {

/// The position of a run when it calls a Callback.
struct RunState {
  int64_t step = 0;   ///< steps done
  int64_t epoch = 0;  ///< counted from 0
  int64_t total_steps = 0;
  double lr = 0;        ///< learning rate of the last step
  int64_t samples = 0;  ///< samples of the last step
  /// Time of the last step on this rank, with the wait for the other ranks.
  double step_s = 0;
  /// The last step made no update: its loss was a spike, a float16 gradient
  /// overflowed, or the batch was empty.
  bool is_skipped = false;
};

/// Interface that a run calls on every rank, in the rank's main thread, with
/// the same numbers on all ranks, except for times. Steps that are repeated
/// after the loss of a rank are reported again.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void before_epoch(const RunState&) {}
  /// Called with the means over the epoch.
  virtual void after_epoch(const RunState&, const Metrics&) {}
  /// Called before a batch is asked for, even if it turns out that the epoch is
  /// over.
  virtual void before_batch(const RunState&) {}
  virtual void before_step(const RunState&) {}
  /// Called with the means over the step's batch.
  virtual void after_step(const RunState&, const Metrics&) {}
  virtual void before_evaluation(const RunState&) {}
  virtual void after_evaluation(const RunState&, const TestReport&) {}
  virtual void before_checkpoint(const RunState&) {}
  /// Called once the checkpoint is copied. It is written while the next steps
  /// run.
  virtual void after_checkpoint(const RunState&) {}

  /// Called after each step. Returning true ends the run after the next step,
  /// as if max_steps were reached. If one rank returns true, all ranks end. A
  /// run that has ended is not continued on resume, unless
  /// CheckpointOptions::allow_changes is set.
  virtual bool wants_to_stop() const { return false; }

  /// Returns what the callback has to remember when a run is resumed, the same
  /// on every rank. It may be made in a step: averages of the weights, say.
  /// Its names and shapes must then stay the same.
  virtual OptimizerState state() const { return {}; }
  /// Loads what state() returned. Called before the first event of a resumed
  /// run. Afterwards, state() must have these names: the run warns of others.
  virtual void load_state(const OptimizerState&) {}
};

}  // namespace lockstep::training
