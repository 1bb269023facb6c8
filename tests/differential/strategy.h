#pragma once

#include <memory>

#include <torch/torch.h>

#include "tests/differential/batch.h"
#include "tests/differential/interpreted_module.h"

namespace lockstep::differential {

/// A way to train a module. What happens in training (history.cc) is the same
/// for each.
class Strategy {
 public:
  /// What is seen of a step.
  struct Step {
    double loss = 0;
    double norm = -1;
    bool is_finite = true;
    bool has_changed_gradient = false;  ///< of those passed to backward()
  };

  explicit Strategy(std::shared_ptr<InterpretedModule> module)
      : module_(std::move(module)) {}
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  InterpretedModule& module() { return *module_; }
  const Case& definition() const { return *module_->definition; }

  /// Adds the gradients of the batch's loss to the module's .grad.
  virtual Step backward(const Batch& batch) = 0;
  /// Whether train() stands for backward() and a step of torch's optimizer.
  virtual bool updates() const { return false; }
  virtual Step train(const Batch& batch, double clip);
  virtual c10::IValue forward(const Batch& batch) = 0;
  /// The part of a batch that this rank is given.
  virtual Batch own_part(const Batch& batch) const { return batch; }
  /// Makes its own optimizer, for all that module().parameters() has.
  virtual void make_optimizer() {}
  /// Brings the buffers up to date, where that waits for the next forward.
  virtual void load_buffers() {}
  virtual void set_rate(double) {}

 private:
  std::shared_ptr<InterpretedModule> module_;
};

inline Strategy::Step Strategy::train(const Batch&, double) { return {}; }

/// A backward as a user of forward() writes it.
inline Strategy::Step backward_of(const Case& of, InterpretedModule& module,
                                  const c10::IValue& outputs,
                                  const Batch& batch) {
  Strategy::Step step;
  if (of.passes_gradient) {
    step.has_changed_gradient = backward_with_gradients(of, outputs, batch);
    return step;
  }
  const torch::Tensor loss =
      loss_of(of, outputs, batch.nested_target(), module.unique_parameters(),
              batch.inputs[0], batch.residual);
  loss.backward();
  step.loss = loss.item<double>();
  return step;
}

}  // namespace lockstep::differential
