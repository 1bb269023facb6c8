#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

struct Donation;

/// Places the tensors that an account's backward passes allocate in the given
/// memory while this object exists. This is for memory that other processes can
/// read: a gradient allocated there need not be copied to them. Tensors may
/// outlive this object. The memory is released with the last tensor in it.
/// Without the accounting allocator, and for a CUDA device, this object does
/// nothing.
class DonatedMemory {
 public:
  /// Donates `memory` for tensors of `device` with the sizes `tensor_bytes` or
  /// sizes of the same classes. `memory` must be aligned to 64 bytes, have at
  /// least bytes_for() bytes, and stay valid as long as `owner` is held.
  DonatedMemory(const Device& device, std::span<std::byte> memory,
                std::span<const int64_t> tensor_bytes,
                std::shared_ptr<const void> owner);
  /// Does the same for the account that this thread's allocations are charged
  /// to. Outside a MemoryScope that is the host's account.
  DonatedMemory(std::span<std::byte> memory,
                std::span<const int64_t> tensor_bytes,
                std::shared_ptr<const void> owner);
  DonatedMemory(DonatedMemory&& other) noexcept;
  DonatedMemory& operator=(DonatedMemory&&) = delete;
  ~DonatedMemory();

  /// Returns the bytes of memory that tensors of `tensor_bytes` need.
  static size_t bytes_for(std::span<const int64_t> tensor_bytes);
  /// Returns the sizes of the tensors that backward passes allocate for
  /// gradients of `gradient_bytes`: these sizes, and one more of each size
  /// class, because a convolution allocates a temporary of the size of its
  /// gradient.
  static std::vector<int64_t> tensors_of_backward(
      std::vector<int64_t> gradient_bytes);

 private:
  void donate(std::span<std::byte> memory,
              std::span<const int64_t> tensor_bytes,
              std::shared_ptr<const void> owner);

  int slice_;  // slice whose account it is, or kHostIndex
  std::unique_ptr<Donation> donation_;  // null: nothing was donated
};

}  // namespace lockstep
