#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/world.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/train/best_evaluation.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/run_optimizer.h"
#include "lockstep/train/state/loss_scaler.h"
#include "lockstep/train/state/outer_step.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/state/spike_guard.h"
#include "lockstep/train/state/state_list.h"
#include "lockstep/train/step/agreement.h"
#include "lockstep/train/step/rank_report.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// Makes the steps of a run: a task's model, its optimizer and a strategy.
class StepRunner {
 public:
  /// Makes the model from options.seed and loads options.init_from or
  /// `resumed`. All ranks use the model of rank 0.
  StepRunner(Task& task, const TrainOptions& options, const World& world,
             const Plan& plan, const Resume* resumed = nullptr);
  ~StepRunner();

  /// Loads the state that the ranks with access to `resumed` read for all.
  /// Collective.
  void load_state(const Resume& resumed) {
    state_.load(resumed, LoadCallbacks::kYes);
  }
  /// Takes weights and optimizer state from `earlier`, after a spike. Callbacks
  /// keep their state. Collective.
  void roll_back(const Resume& earlier);

  /// Makes one step: forward, loss, backward, update. Each rank has its part of
  /// the batch, and all get the outcome of the whole.
  StepOutcome step(const data::Batch& batch, const Position& position,
                   int stop_signal);
  /// Returns the factor of the loss in the next step: 1 except in float16.
  double loss_scale() const { return loss_scaler_ ? loss_scaler_->scale() : 1; }
  /// Returns the loss above which the next step is a spike.
  double loss_limit() const;
  /// Returns the learning rate of the last step.
  double lr() const { return optimizer_->lr(); }

  /// Calls train::evaluate() with this model.
  TestReport evaluate(data::Loader& loader, const std::function<bool()>& stop);

  /// Returns a digest of the state that all ranks have in common: the
  /// parameters, and the optimizer's state unless it is split across the ranks.
  std::string state_digest() const;
  /// Returns, after a step that was not finite, which copies between devices
  /// arrive changed, or "" if that is not the cause.
  std::string damage_by_links() const;

  /// Returns the parameters, then the buffers. The tensors share storage with
  /// them.
  NamedTensors model_state() const;
  size_t parameters() const { return model_->parameters.size(); }
  /// Returns the state of the optimizer and of the other parts (StateList).
  /// Collective.
  OptimizerState state() const { return state_.state(); }
  const std::vector<std::shared_ptr<Callback>>& callbacks() const {
    return callbacks_;
  }
  /// Returns null if the options don't ask for it.
  const BestEvaluation* best() const { return best_.get(); }
  /// Gives this rank the buffers of rank 0, as they were after the last step.
  void load_buffers() { engine_->load_buffers(); }

  /// Writes versions, sizes, devices and threads into `report`.
  void describe(RunReport& report);
  /// Restarts the accounts of samples, time and peak memory: what came before
  /// was warm-up.
  void restart_accounts();
  /// Returns the use of this rank's devices since then.
  std::vector<DeviceUse> device_use() const;
  /// Writes into `report` what each device did in the steps since then:
  /// samples, busy fraction of `step_seconds`, memory, phases. Collective.
  void fill(RunReport& report, double step_seconds) const;

 private:
  StepResult sharded_step(const data::Batch& batch, int64_t step);
  StepResult classic_step(const data::Batch& batch);
  /// Returns the task's loss for the shards of a batch of `total` samples. The
  /// function also notes their metrics.
  ShardLoss loss_of(int64_t total);
  /// Returns the options that every step on `batch` has.
  TrainStepOptions step_options(const data::Batch& batch) const;
  void count(const data::Batch& batch, const PhaseTimes& phases);
  int64_t copies() const;
  void scale_losses();
  void list_state();
  /// Returns true if step `step`, counted from 0, computes its gradients twice.
  bool verifies_gradients(int64_t step) const;
  /// Returns true if the ranks meet in the step at `position`: in every step,
  /// or only in those with an outer step. Between these, each rank has its own
  /// parameters and outcomes.
  bool is_common(const Position& position) const;
  /// Returns true if each rank makes its own steps.
  bool is_local() const { return outer_.has_value(); }
  /// Returns the number of samples of `batch` over the ranks that the engine
  /// knows.
  int64_t engine_batch(const data::Batch& batch) const;
  RankReport rank_report(double step_seconds) const;
  /// Measures the rate that all devices of this rank reach together.
  double peak_flops_per_s() const;

  Task& task_;
  TrainOptions options_;
  World world_;
  Plan plan_;
  Engine::Module module_;
  std::optional<ModuleHandle> model_;
  std::optional<PowerSGD> power_sgd_;  // compresses gradients
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunOptimizer> optimizer_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::shared_ptr<BestEvaluation> best_;
  Agreement agreement_;
  std::optional<OuterStep> outer_;         // for local steps
  std::optional<LossScaler> loss_scaler_;  // float16
  std::optional<SpikeGuard> spikes_;
  /// Adapters of parts that know nothing of a run.
  std::vector<std::unique_ptr<Stateful>> adapters_;
  StateList state_;

  std::vector<int64_t> samples_;  // by device
  PhaseTimes phases_;             // sums over the steps
  // Classic: the time that this thread works for each device.
  std::vector<double> main_thread_s_;
  int64_t steps_ = 0;
  int64_t sent_before_ = 0;  // bytes sent before the accounts began
};

}  // namespace lockstep::train
