#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim.h>
#include <torch/types.h>

#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/sgd.h"
#include "tests/differential/case.h"

namespace lockstep::differential {

/// An optimizer of LibTorch or Lockstep.
class AnyOptimizer {
 public:
  /// `parameters` are those of the module. Without `make_state` one of
  /// Lockstep's is LibTorch's of the same kind.
  AnyOptimizer(const OptimizerSpec& spec,
               const std::vector<torch::Tensor>& parameters,
               const optim::StateFactory& make_state);

  /// The parameters that it trains.
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  /// LibTorch's, or null.
  torch::optim::Optimizer* torch() const { return torch_.get(); }
  /// Lockstep's, or null.
  optim::Optimizer* own() const { return own_.get(); }
  /// Sets the rate to `factor` times that at the beginning.
  void scale_rate(double factor);

  // Changes that one rank makes. The options are always different afterwards.

  /// Multiplies the rate that it has now.
  void multiply_rate(double factor);
  /// Moves the momentum, or the first beta, half of the way to 1. Needs an
  /// optimizer of LibTorch.
  void raise_momentum();
  /// Adds to the weight decay. Needs an optimizer of LibTorch.
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
  /// Returns the state of LibTorch's optimizer `other` as Lockstep's names it.
  std::map<std::string, torch::Tensor> own_state_of(
      torch::optim::Optimizer& other,
      const std::vector<torch::Tensor>& parameters) const;

  OptimizerSpec spec_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> torch_;
  std::unique_ptr<optim::Optimizer> own_;
};

}  // namespace lockstep::differential
