#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/byte_range.h"

namespace lockstep {

/// Returns a tensor with the layout and device of `like`, of which only the
/// ranges `used`, which must be in order, will be written to. They are zero at
/// first. The other ranges take addresses, but no memory, and reading them
/// returns arbitrary values. On the host, the system gives memory to a page
/// when it is first written to, and the bytes of `used` are charged to the
/// account of the caller's MemoryScope until the tensor is freed. For GPUs see
/// SparseGpuMemory. The caller can use `number` to recognise the tensor.
///
/// Throws DeviceError if there are not enough addresses or not enough memory.
torch::Tensor reserved_like(const torch::Tensor& like,
                            const std::vector<ByteRange>& used, int64_t number);

/// Returns the number of a tensor that reserved_like() made, or nullopt for
/// other tensors.
std::optional<int64_t> reserved_number(const torch::Tensor& tensor);

/// Gives back the memory of all pages of `tensor`, made by reserved_like(),
/// outside the used ranges.
void release_unused(const torch::Tensor& tensor);

}  // namespace lockstep
