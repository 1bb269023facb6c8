#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/train/state/outer_step.h"
#include "lockstep/train/step/step_agreement.h"
#include "lockstep/train/step/step_parts.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// The objects that make the steps of a run. They outlive the strategy.
struct StepContext {
  Task& task;
  const TrainOptions& options;
  const ProcessGroup& world;
  const Plan& plan;
  const StepParts& parts;
};

/// A step to make: this rank's part of a batch, and what depends on the steps
/// before it.
struct StepInput {
  const data::Batch& batch;
  Position position;
  double loss_scale = 1;
  double max_loss = 0;  ///< a loss above this is a spike
  int stop_signal = 0;  ///< the signal for which this rank wants to stop
};

/// The way in which a run makes its steps.
class StepStrategy {
 public:
  virtual ~StepStrategy() = default;

  /// Computes forward, loss, backward and update. The clock of the engine's
  /// group then has the times of its phases.
  virtual StepResult step(const StepInput& input) = 0;
  /// Tells all ranks the result of the step, unless each makes its own.
  /// Collective then.
  virtual StepOutcome agree(const StepInput& input, const StepResult& result);

  /// Returns the number of samples of `batch` over the ranks that the engine
  /// knows.
  virtual int64_t engine_batch(const data::Batch& batch) const {
    return batch.total;
  }
  /// Returns the sizes of the parts of a batch, by device of all ranks.
  virtual std::vector<int64_t> split(int64_t batch_size) const;
  /// Returns true if the ranks have one copy of parameters and optimizer state.
  virtual bool ranks_share_state() const;
  /// Returns the number of copies of the parameters, on all ranks.
  virtual int64_t copies() const;
  /// Returns true if an update can be left out after its backward, as float16
  /// needs.
  virtual bool can_leave_out_updates() const;
  /// Returns the time that the caller's thread worked for a device.
  virtual double main_thread_s(size_t /*device*/) const { return 0; }
  virtual void restart_accounts() {}
  /// Returns what combines the parameters if each rank makes its own steps;
  /// null otherwise.
  virtual OuterStep* outer_step() { return nullptr; }

 protected:
  explicit StepStrategy(const StepContext& context);

  /// Returns the options that every step on `batch` has.
  TrainStepOptions step_options(const data::Batch& batch) const;

  StepContext context_;
  Engine& engine_;
  RunOptimizer& optimizer_;
  Agreement agreement_;
};

/// Makes the strategy that the options ask for. Collective if the ranks make
/// their own steps.
std::unique_ptr<StepStrategy> make_strategy(const StepContext& context);

/// kDataParallelClassic: nn.DataParallel as the textbook has it.
std::unique_ptr<StepStrategy> make_classic_strategy(const StepContext& context);

}  // namespace lockstep::training
