#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/train/agreement.h"
#include "lockstep/train/best_evaluation.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/live_status.h"
#include "lockstep/train/loss_scaler.h"
#include "lockstep/train/options.h"
#include "lockstep/train/outer_step.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/rank_report.h"
#include "lockstep/train/resume.h"
#include "lockstep/train/run_optimizer.h"
#include "lockstep/train/spike_guard.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// A task's model, its optimizer and the way a strategy makes a step with them.
class StepRunner {
 public:
  /// Makes the model from options.seed and loads options.init_from, or
  /// `resumed`. Of several ranks, rank 0's model is everyone's.
  StepRunner(Task& task, const TrainOptions& options, const Plan& plan,
             const Resume* resumed = nullptr);
  ~StepRunner();

  /// What state() has, of the ranks that have it for all. Collective.
  void load_state(const Resume& resumed);
  /// Takes weights and the optimizer's state from `earlier`, after a spike.
  /// What callbacks know stays. Collective.
  void roll_back(const Resume& earlier);

  /// One step: forward, loss, backward, update. Of several ranks, each with
  /// its part of the batch, all get the outcome of the whole.
  StepOutcome step(const data::Batch& batch, const Position& position,
                   int stop_signal);
  /// float16: what the loss of the next step is multiplied by. Else 1.
  double loss_scale() const { return loss_scaler_ ? loss_scaler_->scale() : 1; }
  /// The next step's loss is a spike if it is above it.
  double loss_limit() const;
  /// The learning rate of the last step.
  double lr() const { return optimizer_->lr(); }

  /// As train::evaluate(), of this model.
  TestReport evaluate(data::Loader& loader, const std::function<bool()>& stop);

  /// Of what all ranks have alike: parameters, and the optimizer's state if it
  /// is not cut over them.
  std::string state_digest() const;
  /// After a step that was not finite: what changes between devices, if that
  /// is the cause, and "" if it is not.
  std::string damage_by_links() const;

  /// Parameters, then buffers; shares their storage.
  NamedTensors model_state() const;
  size_t parameters() const { return model_->parameters.size(); }
  /// Of the optimizer, and of the callbacks as "callback.<i>.<name>".
  /// Collective.
  OptimizerState state() const;
  const std::vector<std::shared_ptr<Callback>>& callbacks() const {
    return callbacks_;
  }
  /// Null if the options don't ask for it.
  const BestEvaluation* best() const { return best_.get(); }
  /// Gives this rank rank 0's buffers, as they were after the last step.
  void load_buffers() { engine_->load_buffers(); }

  /// What is at work, into `report`: versions, sizes, devices, threads.
  void describe(RunReport& report);
  /// Starts the accounts of samples, time and memory peaks anew: what came
  /// before was warm-up.
  void restart_accounts();
  /// Of this rank's devices, since then.
  std::vector<DeviceUse> device_use() const;
  /// What the steps since then did, device by device, into `report`: samples,
  /// busy fraction of `step_seconds`, memory, phases. Collective.
  void fill(RunReport& report, double step_seconds) const;

 private:
  StepResult sharded_step(const data::Batch& batch, int64_t step);
  StepResult classic_step(const data::Batch& batch);
  /// Returns the task's loss for the shards of a batch of `total` samples. It
  /// notes their metrics.
  ShardLoss loss_of(int64_t total);
  /// The options that every step on `batch` has.
  TrainStepOptions step_options(const data::Batch& batch) const;
  void count(const data::Batch& batch, const PhaseTimes& phases);
  int64_t copies() const;
  void scale_losses();
  /// Whether step `step`, counted from 0, computes its gradients twice.
  bool verifies_gradients(int64_t step) const;
  /// Whether the ranks come together in the step at `position`: in each one, or
  /// in those with an outer step. Between these each rank's parameters and
  /// outcomes are its own.
  bool is_common(const Position& position) const;
  /// Whether each rank makes steps by itself.
  bool is_local() const { return outer_.has_value(); }
  /// What state() of a run of so many ranks has.
  OptimizerState state_of_ranks(int64_t ranks) const;
  /// Samples of `batch` over all ranks that the engine knows of.
  int64_t engine_batch(const data::Batch& batch) const;
  RankReport rank_report(double step_seconds) const;
  /// What all devices of this rank reach at once, measured.
  double peak_flops_per_s() const;

  Task& task_;
  TrainOptions options_;
  Plan plan_;
  Engine::Module module_;
  std::optional<ModuleHandle> model_;
  std::optional<PowerSGD> power_sgd_;  // compresses gradients
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunOptimizer> optimizer_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::shared_ptr<BestEvaluation> best_;
  Agreement agreement_;
  std::optional<OuterStep> outer_;         // of local steps
  std::optional<LossScaler> loss_scaler_;  // float16
  std::optional<SpikeGuard> spikes_;

  std::vector<int64_t> samples_;  // by device
  PhaseTimes phases_;             // sums over the steps
  // Classic: what this thread does for each device.
  std::vector<double> main_thread_s_;
  int64_t steps_ = 0;
  int64_t sent_before_ = 0;  // bytes, before the accounts began
};

}  // namespace lockstep::train
