#pragma once

#include <initializer_list>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// A submodule that is a weight, and perhaps a bias: so that the parameters
/// have the names that others have for them.
class Weight : public torch::nn::Module {
 public:
  /// Normal weights with that deviation, and a bias of zeros.
  struct Values {
    double deviation = 0.02;
    int64_t bias = 0;  ///< elements; 0: none
  };
  Weight(std::initializer_list<int64_t> shape, const Values& values, Init init);

  torch::Tensor weight;
  torch::Tensor bias;  ///< undefined: none
};

/// The same whose weight is ones: of a norm.
std::shared_ptr<Weight> norm_weight(int64_t width, bool has_bias, Init init);

}  // namespace lockstep::models
