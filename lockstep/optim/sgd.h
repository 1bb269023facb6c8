#pragma once

#include <torch/types.h>

namespace lockstep::optim {

/// What SGD does to a block, with torch.optim.SGD's names.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  /// The momentum buffer becomes the gradient, without dampening.
  bool is_first = false;
};

/// ATen's fused SGD on blocks of equal length (1-d). `momentum`: undefined
/// without momentum. Half and bfloat16 on the CPU are computed in float.
void sgd_update(const torch::Tensor& parameter, const torch::Tensor& gradient,
                const torch::Tensor& momentum, const SgdStep& step);

}  // namespace lockstep::optim
