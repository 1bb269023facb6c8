#pragma once

#include <cstddef>

#include <torch/torch.h>

#include "lockstep/comm/collectives/shared_memory.h"

namespace lockstep {

/// A tensor laid out like `like` at `offset` of rank's memory, which it keeps.
/// The bytes must be within that memory.
torch::Tensor shared_tensor(const SharedMemory& memory, int rank, size_t offset,
                            const torch::Tensor& like);

/// Whether `tensor` is, or is a view of, one made by shared_tensor(): what is
/// written to it is written for all ranks.
bool is_shared_tensor(const torch::Tensor& tensor);

/// Gives a shared tensor memory of its own, with the same values; leaves any
/// other as it is.
void unshare(torch::Tensor& tensor);

}  // namespace lockstep
