#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/device/autocast.h"

namespace lockstep::models {

/// Returns true if the products of this thread are those of operands that are
/// rounded to bfloat16, but computed in float32: under autocast to bfloat16 on
/// a CPU that has_slow_bfloat16().
bool has_rounded_products();

/// Returns `x`, which may be undefined, cast to the type of autocast and back
/// to float32, with a graph.
torch::Tensor rounded(const torch::Tensor& x);

/// Returns compute(operands...), a product or convolution, under autocast. If
/// has_rounded_products(), the operands are rounded to bfloat16, `compute` gets
/// them in float32 with autocast off, and the result is rounded, as a processor
/// with instructions for bfloat16 does it: only the order of the sums is
/// another. Operands in other types than float32 and bfloat16 are left to
/// LibTorch.
template <class Compute, class... Tensors>
torch::Tensor product(const Compute& compute, const Tensors&... operands) {
  const auto can_round = [](const torch::Tensor& x) {
    return !x.defined() ||
           (x.is_cpu() && (x.scalar_type() == torch::kFloat32 ||
                           x.scalar_type() == torch::kBFloat16));
  };
  if (!has_rounded_products() || !(can_round(operands) && ...)) {
    return compute(operands...);
  }
  return [&](const auto&... in_float32) {
    const NoAutocast no_autocast;
    return compute(in_float32...).to(torch::kBFloat16);
  }(rounded(operands)...);
}

/// Returns layer(x) for x (..., in), also under autocast.
torch::Tensor multiply(const torch::nn::LinearImpl& layer,
                       const torch::Tensor& x);

/// Returns x (..., in) times the transposed weight (out, in), with autocast.
torch::Tensor multiply_transposed(const torch::Tensor& x,
                                  const torch::Tensor& weight);

}  // namespace lockstep::models
