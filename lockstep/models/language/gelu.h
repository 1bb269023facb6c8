#pragma once

#include <torch/types.h>

namespace lockstep::models {

/// Returns x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the GELU of GPT-2
/// (Hendrycks and Gimpel 2016, section 2). On CPUs in float32 and bfloat16,
/// forward and backward take one exponential per element, where LibTorch
/// computes a tanh. In float32, the error is at most 3e-7 times x, or times 1
/// if that is more. All processors give the same bits.
torch::Tensor tanh_gelu(const torch::Tensor& x);

}  // namespace lockstep::models
