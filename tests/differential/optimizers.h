#pragma once

#include <memory>
#include <vector>

#include <torch/optim.h>
#include <torch/types.h>

#include "tests/differential/case.h"

namespace lockstep::differential {

/// An optimizer of LibTorch.
class AnyOptimizer {
 public:
  /// `parameters` are those of the module.
  AnyOptimizer(const OptimizerSpec& spec,
               const std::vector<torch::Tensor>& parameters);

  /// The parameters that it trains.
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  torch::optim::Optimizer* torch() const { return torch_.get(); }
  /// Sets the rate to `factor` times that at the beginning.
  void scale_rate(double factor);

  // Changes that one rank makes. The options are always different afterwards.

  /// Multiplies the rate that it has now.
  void multiply_rate(double factor);
  /// Moves the momentum, or the first beta, half of the way to 1.
  void raise_momentum();
  /// Adds to the weight decay.
  void add_weight_decay(double more);
  /// Sets the state to that of an optimizer without a step.
  void clear_state();
  /// Loads the state of an optimizer that trained with other gradients.
  void load_other_state();

 private:
  void set_rate(double rate);
  /// Calls `visit` with the options of each group, in their own type.
  template <class Visit>
  void visit_options(const Visit& visit);

  OptimizerSpec spec_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> torch_;
};

}  // namespace lockstep::differential
