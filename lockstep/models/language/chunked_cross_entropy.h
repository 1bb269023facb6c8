#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/losses/weighted_loss.h"

namespace lockstep::models {

/// Computes torch's cross_entropy(hidden @ weight^T, targets): the mean over
/// the rows whose target is not -100. Its weight is the number of these rows.
/// Without such rows, the loss and its gradients are 0.
///
/// The logits of all rows never exist at once. `chunk_rows` rows of them, and
/// their gradients, are computed at a time, in the forward. This takes
/// chunk_rows * vocabulary values instead of three times N * vocabulary (as in
/// Hsu et al. 2024, "Liger Kernel", section 3.2). If `chunk_rows` is 0, a chunk
/// has 4 Mi logits, but at least 128 rows. `chunk_rows` changes the rounding.
///
/// `hidden` (N, W) and `weight` (V, W) are on one device; `targets` is (N)
/// int64. Products are computed in autocast's type if autocast is on. The loss
/// and its gradients are summed in float32. The loss is a float32 scalar. Waits
/// for a GPU once.
///
/// Throws InvalidArgument (bad-tensor) for other shapes and types, and for a
/// target that is neither in [0, V) nor -100.
WeightedLoss chunked_cross_entropy(const torch::Tensor& hidden,
                                   const torch::Tensor& weight,
                                   const torch::Tensor& targets,
                                   int64_t chunk_rows = 0);

}  // namespace lockstep::models
