#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

struct Donation;

/// Memory in which the tensors are made that an account's backward passes make
/// while this object lives. For memory that other processes see: a gradient
/// that is made there need not be copied to them. Tensors may outlive this
/// object: the memory is let go with the last that lies in it. Without the
/// accounting allocator, and for a CUDA device, nothing is made there.
class DonatedMemory {
 public:
  /// For tensors of `tensor_bytes`, and of like sizes, of `device`. `memory` is
  /// aligned to 64 bytes, has as many bytes as bytes_for() says, and is there
  /// as long as `owner` is held.
  DonatedMemory(const Device& device, std::span<std::byte> memory,
                std::span<const int64_t> tensor_bytes,
                std::shared_ptr<const void> owner);
  /// The same, for what this thread is charged to now: the host, outside of a
  /// MemoryScope.
  DonatedMemory(std::span<std::byte> memory,
                std::span<const int64_t> tensor_bytes,
                std::shared_ptr<const void> owner);
  DonatedMemory(DonatedMemory&& other) noexcept;
  DonatedMemory& operator=(DonatedMemory&&) = delete;
  ~DonatedMemory();

  /// What memory tensors of `tensor_bytes` take.
  static size_t bytes_for(std::span<const int64_t> tensor_bytes);
  /// The sizes of what backward passes make for gradients of `gradient_bytes`:
  /// those, and one more of each size, as a convolution makes a temporary of
  /// that size beside its gradient.
  static std::vector<int64_t> tensors_of_backward(
      std::vector<int64_t> gradient_bytes);

 private:
  void donate(std::span<std::byte> memory,
              std::span<const int64_t> tensor_bytes,
              std::shared_ptr<const void> owner);

  int slice_;                           // of the account, or kHostIndex
  std::unique_ptr<Donation> donation_;  // null: nothing was donated
};

}  // namespace lockstep
