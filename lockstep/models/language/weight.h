#pragma once

#include <initializer_list>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// A submodule with a weight, and perhaps a bias. It gives parameters the same
/// names as in other libraries.
class Weight : public torch::nn::Module {
 public:
  /// Initial values: normal weights with this deviation, and a bias of zeros.
  struct Values {
    double deviation = 0.02;
    int64_t bias = 0;  ///< elements; 0: none
  };
  Weight(std::initializer_list<int64_t> shape, const Values& values, Init init);

  torch::Tensor weight;
  torch::Tensor bias;  ///< undefined: none
};

/// Makes a weight of ones, for a norm.
std::shared_ptr<Weight> norm_weight(int64_t width, bool has_bias, Init init);

}  // namespace lockstep::models
