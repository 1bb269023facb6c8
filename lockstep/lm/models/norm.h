#pragma once

#include <torch/types.h>

namespace lockstep::models {

/// The kinds of norms: GPT-2's (Ba et al. 2016), and Llama's, which has no
/// mean and no shift (Zhang and Sennrich 2019).
enum class NormKind { kLayer, kRms };

/// The sum of a residual stream and what a layer adds to it, and its norm.
struct NormedSum {
  torch::Tensor sum;     ///< (..., W), float32
  torch::Tensor normed;  ///< (..., W), in the wanted type
};

/// Computes x + (delta + bias) and its norm, times `weight` plus `shift`, in
/// one pass over the rows. The backward is one pass, too, and also sums the
/// gradients of the vectors. `bias` and `shift` may be undefined, and so may
/// `delta`, which then adds nothing.
///
/// All is computed in float32: a mean is the sum of 16 interleaved sums,
/// divided by W. The gradients of the vectors are sums over blocks of 64 rows,
/// which are then added in order. So the bits depend neither on the threads nor
/// on the processor.
///
/// For tensors with has_kernels(): `x` and the vectors are float32, `delta` is
/// float32 or bfloat16, and `type`, the type of the norm, is one of these. W is
/// a multiple of 16.
NormedSum add_and_norm(const torch::Tensor& x, const torch::Tensor& delta,
                       const torch::Tensor& bias, const torch::Tensor& weight,
                       const torch::Tensor& shift, double epsilon,
                       NormKind kind, torch::ScalarType type);

/// Returns x + (delta + bias). Takes the tensors of add_and_norm().
torch::Tensor add_with_bias(const torch::Tensor& x, const torch::Tensor& delta,
                            const torch::Tensor& bias);

}  // namespace lockstep::models
