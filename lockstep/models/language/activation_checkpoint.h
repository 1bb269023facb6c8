#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

namespace lockstep::models {

/// Returns `function(input)` without keeping what its backward needs. The
/// backward computes the function again, with the same random numbers and under
/// the same autocast, so the gradients have the same bits (Chen et al. 2016; as
/// in torch.utils.checkpoint). This costs another forward, and only keeps
/// `input` in memory.
///
/// `parameters` are the tensors besides `input` for which the function gets
/// gradients. The function must compute the same both times, and have no side
/// effects.
torch::Tensor activation_checkpoint(
    std::function<torch::Tensor(const torch::Tensor& input)> function,
    const torch::Tensor& input, std::vector<torch::Tensor> parameters);

}  // namespace lockstep::models
