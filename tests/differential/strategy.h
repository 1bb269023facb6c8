#pragma once

#include <memory>

#include <torch/types.h>

#include "tests/differential/batch.h"
#include "tests/differential/interpreted_module.h"
#include "tests/differential/losses.h"
#include "tests/differential/optimizers.h"

namespace lockstep::differential {

/// A way to train a module. What happens in training (history.cc) is the same
/// for each.
class Strategy {
 public:
  /// Observed results of a step.
  struct Step {
    double loss = 0;
    double weight = 0;  ///< sum of the losses' weights; see WeightedLoss
    double norm = -1;
    bool is_finite = true;
    bool has_changed_gradient = false;  ///< of those passed to backward()
  };
  /// Options of train_step(). 0: as TrainStepOptions has it.
  struct StepOptions {
    double clip = 0;
    double total_weight = 0;
  };

  explicit Strategy(std::shared_ptr<InterpretedModule> module)
      : module_(std::move(module)) {}
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  InterpretedModule& module() { return *module_; }
  const Case& definition() const { return *module_->definition; }

  virtual c10::IValue forward(const Batch& batch) = 0;
  /// Forward, loss and backward, as users of forward() write them: adds
  /// gradients to the module's .grad.
  virtual Step backward(const Batch& batch, const std::string& loss) = 0;
  /// A train_step() with `optimizer`; null: with none.
  virtual Step train_step(const Batch& batch, const std::string& loss,
                          AnyOptimizer* optimizer,
                          const StepOptions& options) = 0;
  /// Begins or ends no_sync().
  virtual void set_synced(bool) {}
  virtual void rebuild() {}
  /// Returns whether this is rank `rank` of several.
  virtual bool is_rank(int64_t /*rank*/) const { return false; }
  /// Waits until each rank has come to this point.
  virtual void wait_for_ranks() {}
  /// Brings the buffers up to date, where that waits for the next forward.
  virtual void load_buffers() {}

 private:
  std::shared_ptr<InterpretedModule> module_;
};

/// A backward of `outputs` as a user of forward() writes it. `total_weight`: of
/// the batches whose gradients are added, of which this is one.
inline Strategy::Step backward_of(const Case& of, const std::string& loss,
                                  InterpretedModule& module,
                                  const c10::IValue& outputs,
                                  const Batch& batch, double total_weight = 0) {
  Strategy::Step step;
  if (of.passes_gradient) {
    step.has_changed_gradient = backward_with_gradients(of, outputs, batch);
    return step;
  }
  const WeightedLoss weighted =
      loss_of(of, loss, outputs, batch.nested_target(),
              module.unique_parameters(), batch.inputs[0], batch.residual);
  step.weight = weighted.weight.defined() ? weighted.weight.item<double>()
                                          : static_cast<double>(batch.samples);
  const torch::Tensor value = total_weight > 0
                                  ? weighted.loss * (step.weight / total_weight)
                                  : weighted.loss;
  value.backward();
  step.loss = value.item<double>();
  return step;
}

}  // namespace lockstep::differential
