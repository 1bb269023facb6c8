#pragma once

#include <string>

#include <torch/types.h>

namespace lockstep {

/// Returns "weight (nan in 3 of 5120 elements)", or "" if all elements of
/// `tensor` are finite.
std::string describe_not_finite(const std::string& name,
                                const torch::Tensor& tensor);

}  // namespace lockstep
