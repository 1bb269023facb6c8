#pragma once

#include <cstdint>

#include <torch/torch.h>

namespace lockstep::models {

/// torch's cross_entropy(hidden @ weight^T, targets): the mean over the rows,
/// without those whose target is -100.
///
/// The logits of all rows never exist at once: `chunk_rows` at a time are
/// computed, and their gradients at once, in the forward. So it takes
/// chunk_rows * vocabulary values, and not N * vocabulary times three (as
/// Hsu et al. 2024, "Liger Kernel", section 3.2). 0: as many rows as have 4 Mi
/// logits, and 128 at least. `chunk_rows` changes the rounding.
///
/// `hidden` (N, W), `weight` (V, W) on one device, `targets` (N) int64.
/// Products are computed in autocast's type where that is on; the loss and its
/// gradients are summed in float32. Returns a scalar of float32.
torch::Tensor chunked_cross_entropy(const torch::Tensor& hidden,
                                    const torch::Tensor& weight,
                                    const torch::Tensor& targets,
                                    int64_t chunk_rows = 0);

}  // namespace lockstep::models
