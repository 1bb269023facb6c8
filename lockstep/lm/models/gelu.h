#pragma once

#include <torch/types.h>

namespace lockstep::models {

/// Returns x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the GELU of GPT-2
/// (Hendrycks and Gimpel 2016, section 2). On CPUs in float32 and bfloat16,
/// forward and backward take one exponential per element, where LibTorch
/// computes a tanh. In float32, the error is at most 3e-7 times x, or times 1
/// if that is more. All processors give the same bits.
torch::Tensor tanh_gelu(const torch::Tensor& x);

/// Returns tanh_gelu(x @ weight + bias) for x (..., K) and weight (K, N) of one
/// type, float32 or bfloat16, and a float32 bias. With bfloat16, the product is
/// rounded before the bias is added in float32.
///
/// The forward keeps the slope of GELU in place of its input, so the backward
/// is one product per element. The gradient of the bias is a sum over blocks of
/// 64 rows, which are then added in order. The bits depend neither on the
/// threads nor on the processor, except those of the products.
torch::Tensor linear_gelu(const torch::Tensor& x, const torch::Tensor& weight,
                          const torch::Tensor& bias);

}  // namespace lockstep::models
