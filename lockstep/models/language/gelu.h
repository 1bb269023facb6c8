#pragma once

#include <torch/types.h>

namespace lockstep::models {

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GELU as GPT-2 has it
/// (Hendrycks and Gimpel 2016, section 2). On CPUs in float32 and bfloat16 with
/// one exponential for each element, forward and backward, where LibTorch
/// computes a tanh. In float32 it is right to 3e-7 times x, or times 1 if that
/// is more. All processors give the same bits.
torch::Tensor tanh_gelu(const torch::Tensor& x);

}  // namespace lockstep::models
