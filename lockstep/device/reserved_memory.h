#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/torch.h>

namespace lockstep {

/// Bytes of a tensor's memory, from its start: [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// A tensor of zeros laid out like `like`, on the host, of which only `used`
/// will be written to. The rest takes addresses, but no memory: the system
/// gives a page its memory when it is first written to. `used` is charged to
/// the account of the caller's MemoryScope until the tensor is freed. `number`
/// is for the caller, to know the tensor again.
///
/// Throws DeviceError if the system gives no addresses.
torch::Tensor reserved_like(const torch::Tensor& like,
                            const std::vector<ByteRange>& used, int64_t number);

/// The number of a tensor that reserved_like() made; none of another tensor.
std::optional<int64_t> reserved_number(const torch::Tensor& tensor);

/// Gives back the memory of all pages of `tensor`, made by reserved_like(),
/// that lie outside of what was to be used; they are zeros again.
void release_unused(const torch::Tensor& tensor);

}  // namespace lockstep
