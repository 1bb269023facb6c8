#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "lockstep/base/error.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/loader.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/record/live_status.h"
#include "lockstep/train/record/run_log.h"
#include "lockstep/train/record/tensorboard_log.h"
#include "lockstep/train/record/trace_recorder.h"
#include "lockstep/train/run/run_checkpoints.h"
#include "lockstep/train/run/run_training.h"
#include "lockstep/train/run/state_guard.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/step/step_runner.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// The data that a process keeps when it continues after another rank was lost.
struct RunHistory {
  RunRecordings recordings;
  std::shared_ptr<const data::BatchSource> training_data;
  std::shared_ptr<const data::BatchSource> evaluation_data;
  DataFingerprint data_fingerprint;
  GuardHistory guard;
  std::string identity;  ///< identity of the run among those of its agent
};

/// Returns the path that a run's report is written to; "" if it is not written.
std::string report_path(const TrainOptions& options);

/// A run, from its beginning or from where another one stopped, until its end
/// or the loss of a rank.
class Run {
 public:
  Run(Task& task, const TrainOptions& options, const RunContext& context,
      RunHistory& history);

  void train();

 private:
  const DataFingerprint& data_fingerprint();
  std::shared_ptr<const data::BatchSource> open_training_data();
  std::unique_ptr<data::Loader> open_evaluation_data() const;
  RunPosition position() const;

  void train_epoch(int64_t epoch);
  std::optional<data::Batch> next_batch(data::Loader::Iterator& next);
  bool train_batch(const data::Batch& batch, int64_t epoch);
  /// Makes a step. If the engine finds that the ranks' parameters or optimizer
  /// states differ, the guard decides how the run goes on.
  StepOutcome make_step(const data::Batch& batch, int64_t epoch);
  /// Returns whether the next step has to prove that it computes what the model
  /// does.
  bool is_proof_due() const;
  /// Returns whether a checkpoint is saved after `step` steps.
  bool is_saved_at(int64_t step) const;
  /// Compares the state of the ranks if that is due. Collective if so.
  void compare_ranks(const StepOutcome& outcome);
  /// Handles a spike, after a step whose update was left out because of it.
  /// Collective.
  void answer_spike(double loss, double limit);
  int wanted_stop() const;
  [[noreturn]] void stop_on_garbage(const StepOutcome& outcome, int64_t epoch);
  void list_callbacks();
  /// Writes the time line of a step, and the trace that was asked for.
  /// Collective.
  void write_recording();
  void finish();
  void evaluate_at_end();
  TestReport evaluate();
  void save();
  /// Calls `event` of each callback with the state of the run and `values`.
  template <class... Values>
  void tell(void (Callback::*event)(const RunState&, const Values&...),
            const Values&... values) {
    const RunState state = this->state();
    for (Callback* callback : callbacks_) {
      write_output([&] { (callback->*event)(state, values...); });
    }
  }
  /// Calls `write`, which writes a file besides the checkpoints. If that fails,
  /// the run saves a checkpoint before it ends with the error.
  void write_output(c10::function_ref<void()> write);
  std::optional<IoError> output_failure() const;
  RunState state() const;

  bool is_first() const { return context_.world.rank() == 0; }
  int signal() const { return context_.stop ? context_.stop() : 0; }

  Task& task_;
  TrainOptions options_;
  RunContext context_;
  RunHistory& history_;
  std::optional<Resume> resume_;
  Plan plan_;
  std::shared_ptr<const data::BatchSource> training_data_;
  std::unique_ptr<data::Loader> training_batches_;
  std::unique_ptr<data::Loader> evaluation_batches_;
  int64_t total_steps_;
  RunCheckpoints checkpoints_;
  StepRunner runner_;
  StateGuard guard_;
  RunLog log_;
  std::optional<LiveStatus> live_;
  std::optional<TraceRecorder> trace_;
  std::optional<TensorBoardLog> tensorboard_;
  /// All that the run tells of its steps: its own records and the callbacks of
  /// the task.
  std::vector<Callback*> callbacks_;
  int64_t step_ = 0;
  int64_t proven_at_ = 0;  // step_ at the last is_proof_due()
  int64_t epoch_ = 0;      // the epoch in training, or the last one
  RunState last_;          // of the last step; see state()
  bool regroups_ = false;
  bool is_ended_ = false;                 ///< a callback ended the run
  std::optional<IoError> write_failure_;  // first failure of write_output()
};

}  // namespace lockstep::training
