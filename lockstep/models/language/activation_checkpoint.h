#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

namespace lockstep::models {

/// `function(input)` without keeping what its backward needs: that is computed
/// again in the backward, with the same random numbers and under the same
/// autocast, so that the gradients have the same bits (Chen et al. 2016; as
/// torch.utils.checkpoint). It costs another forward, and takes the memory of
/// `input` alone.
///
/// `parameters` are the tensors beside `input` that the function gets gradients
/// for. It must compute the same both times, and have no effects.
torch::Tensor activation_checkpoint(
    std::function<torch::Tensor(const torch::Tensor& input)> function,
    const torch::Tensor& input, std::vector<torch::Tensor> parameters);

}  // namespace lockstep::models
