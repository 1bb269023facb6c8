#pragma once

#include <torch/types.h>

#include "lockstep/optim/sgd.h"

namespace lockstep::optim {

/// Does the same as sgd_update(), but rounds as torch::optim::SGD::step() does
/// in float and double, if the parameter is on the CPU.
void sgd_update_like_torch(const torch::Tensor& parameter,
                           const torch::Tensor& gradient,
                           const torch::Tensor& momentum, const SgdStep& step);

}  // namespace lockstep::optim
