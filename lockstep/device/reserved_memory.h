#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "lockstep/device/byte_range.h"

namespace lockstep {

/// A tensor laid out like `like`, and where that is, of which only `used`, in
/// order, will be written to: zeros there. The rest takes addresses, but no
/// memory. On the host the system gives a page its memory when it is first
/// written to, and `used` is charged to the account of the caller's
/// MemoryScope until the tensor is freed; on a GPU see SparseGpuMemory. What
/// is read of the rest may be anything. `number` is for the caller, to know the
/// tensor again.
///
/// Throws DeviceError if there are no addresses, or no memory.
torch::Tensor reserved_like(const torch::Tensor& like,
                            const std::vector<ByteRange>& used, int64_t number);

/// The number of a tensor that reserved_like() made; none of another tensor.
std::optional<int64_t> reserved_number(const torch::Tensor& tensor);

/// Gives back the memory of all pages of `tensor`, made by reserved_like(),
/// that lie outside of what was to be used.
void release_unused(const torch::Tensor& tensor);

}  // namespace lockstep
