#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace lockstep::models {

/// "weight (nan in 3 of 5120 elements)"; empty if all of `tensor` is finite.
std::string describe_not_finite(const std::string& name,
                                const torch::Tensor& tensor);

/// Where a NaN or an infinity is seen first: in the batch's inputs, in a
/// parameter, in a parameter's gradient (in the order of registration), or,
/// when all of these are finite, in the loss itself. As words for a message,
/// with what was found and in how many elements: "parameter 'fc.weight' (nan
/// in 3 of 5120 elements)".
std::string first_not_finite(
    const std::vector<torch::Tensor>& inputs,
    const std::vector<std::pair<std::string, torch::Tensor>>& parameters);

}  // namespace lockstep::models
