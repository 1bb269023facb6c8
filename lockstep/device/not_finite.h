#pragma once

#include <string>

#include <torch/types.h>

namespace lockstep {

/// "weight (nan in 3 of 5120 elements)"; empty if all of `tensor` is finite.
std::string describe_not_finite(const std::string& name,
                                const torch::Tensor& tensor);

}  // namespace lockstep
