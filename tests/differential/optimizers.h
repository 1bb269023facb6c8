#pragma once

#include <memory>
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

 private:
  double rate_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> torch_;
  std::unique_ptr<optim::Optimizer> own_;
};

}  // namespace lockstep::differential
