#pragma once

#include <torch/types.h>

namespace lockstep::optim {

/// The options of an SGD step on a block. Names follow torch.optim.SGD.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  /// Whether the momentum buffer is set to the gradient, without dampening.
  bool is_first = false;
};

/// Runs ATen's fused SGD on 1-d blocks of equal length. `momentum` is undefined
/// if there is no momentum. Half and bfloat16 on the CPU are computed in float.
void sgd_update(const torch::Tensor& parameter, const torch::Tensor& gradient,
                const torch::Tensor& momentum, const SgdStep& step);

/// Does the same, but rounds as torch::optim::SGD::step() does in float and
/// double, if the parameter is on the CPU.
void sgd_update_like_torch(const torch::Tensor& parameter,
                           const torch::Tensor& gradient,
                           const torch::Tensor& momentum, const SgdStep& step);

}  // namespace lockstep::optim
