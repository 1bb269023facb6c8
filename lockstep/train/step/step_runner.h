#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/train/best_evaluation.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/state/loss_scaler.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/state/spike_guard.h"
#include "lockstep/train/state/state_list.h"
#include "lockstep/train/step/step_accounts.h"
#include "lockstep/train/step/step_agreement.h"
#include "lockstep/train/step/step_parts.h"
#include "lockstep/train/step/step_strategy.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// Makes the steps of a run: a task's model, its optimizer and a strategy.
class StepRunner {
 public:
  /// Makes the model from options.seed() and loads options.init_from() or
  /// `resumed`. All ranks use the model of rank 0.
  StepRunner(Task& task, const TrainOptions& options, const ProcessGroup& world,
             const Plan& plan, const Resume* resumed = nullptr);
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

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
  /// Makes the next step prove that it computes what the model does
  /// (VerifyOptions::steps). Each rank has to call it.
  void verify_next_step();
  /// Returns the factor of the loss in the next step: 1 except in float16.
  double loss_scale() const { return loss_scaler_ ? loss_scaler_->scale() : 1; }
  /// Returns the loss above which the next step is a spike.
  double loss_limit() const;
  /// Returns the learning rate of the last step.
  double lr() const { return parts_.optimizer->lr(); }

  /// Calls training::evaluate() with this model.
  TestReport evaluate(data::Loader& loader, const std::function<bool()>& stop);

  /// Returns a digest of the state that all ranks have in common: the
  /// parameters, and the optimizer's state unless it is split across the ranks.
  std::string state_digest() const;
  /// Returns, after a step that was not finite, which copies between devices
  /// arrive changed, or "" if that is not the cause.
  std::string damage_by_links() const;

  /// Returns the parameters, then the buffers. The tensors share storage with
  /// them.
  NamedTensors model_state() const { return state_of(parts_.model); }
  size_t parameters() const { return parts_.model.parameters.size(); }
  /// Returns the state of the optimizer and of the other parts (StateList).
  /// Collective.
  OptimizerState state() const { return state_.state(); }
  const std::vector<std::shared_ptr<Callback>>& callbacks() const {
    return callbacks_;
  }
  /// Returns null if the options don't ask for it.
  const BestEvaluation* best() const { return best_.get(); }
  /// Gives this rank the buffers of rank 0, as they were after the last step.
  void load_buffers() { parts_.engine->load_buffers(); }

  /// Writes versions, sizes, devices and threads into `report`.
  void describe(RunReport& report);
  /// Restarts the accounts of samples, time and peak memory: what came before
  /// was warm-up.
  void restart_accounts() { accounts_.restart(); }
  /// Returns the use of this rank's devices since then.
  std::vector<DeviceUse> device_use() const { return accounts_.device_use(); }
  /// Writes into `report` what each device did in the steps since then:
  /// samples, busy fraction of `step_seconds`, memory, phases. Collective.
  void fill(RunReport& report, double step_seconds) const;

 private:
  void scale_losses();
  void list_state();
  /// Measures the rate that all devices of this rank reach together.
  double peak_flops_per_s() const;

  Task& task_;
  TrainOptions options_;
  ProcessGroup world_;
  Plan plan_;
  StepParts parts_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::shared_ptr<BestEvaluation> best_;
  std::unique_ptr<StepStrategy> strategy_;
  std::optional<LossScaler> loss_scaler_;  // float16
  std::optional<SpikeGuard> spikes_;
  /// Adapters of parts that know nothing of a run.
  std::vector<std::unique_ptr<Stateful>> adapters_;
  StateList state_;
  StepAccounts accounts_;
};

}  // namespace lockstep::training
