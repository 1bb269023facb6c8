#pragma once

#include <torch/types.h>

namespace lockstep::models {

/// Returns the sum over the rows of weight * -log(softmax(logits)[target]), and
/// with `keeps_gradient`, replaces the logits by the gradients of this sum.
///
/// `logits` (N, V) are float32 or bfloat16 on a CPU; `targets` (N) are from 0
/// to V - 1; `weights` (N) are float32. A row is computed in float32: a sum is
/// 16 interleaved sums. The losses of the rows are added in order, in float64.
/// So the bits don't depend on the threads.
double cross_entropy_of_rows(const torch::Tensor& logits,
                             const torch::Tensor& targets,
                             const torch::Tensor& weights, bool keeps_gradient);

}  // namespace lockstep::models
