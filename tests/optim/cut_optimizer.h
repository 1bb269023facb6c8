#pragma once

#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/block_optimizer.h"

namespace lockstep::optim {

/// An optimizer of torch::optim, with its update in blocks.
template <class Torch>
class CutOptimizer {
 public:
  template <class Options>
  CutOptimizer(std::vector<torch::Tensor> parameters, const Options& options,
               FirstMomentum first_momentum = FirstMomentum::kGradient)
      : torch_(std::move(parameters), options),
        blocks_(torch_, StateFactory(), Kernels::kFused, first_momentum) {
    blocks_.follow();
  }

  BlockOptimizer* operator->() { return &blocks_; }
  BlockOptimizer& operator*() { return blocks_; }
  Torch& torch() { return torch_; }
  /// Updates with the parameters' .grad.
  void step() {
    blocks_.follow();
    blocks_.step();
  }

 private:
  Torch torch_;
  BlockOptimizer blocks_;
};

}  // namespace lockstep::optim
