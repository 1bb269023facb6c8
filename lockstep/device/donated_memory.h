#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

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
  /// aligned to 64 bytes, has as many bytes as bytes_for() says for all tensors
  /// together, and is there as long as `owner` is held.
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

  /// What memory a tensor of `bytes` takes.
  static int64_t bytes_for(int64_t bytes);

 private:
  void donate(std::span<std::byte> memory,
              std::span<const int64_t> tensor_bytes,
              std::shared_ptr<const void> owner);

  int slice_;                           // of the account, or kHostIndex
  std::unique_ptr<Donation> donation_;  // null: nothing was donated
};

}  // namespace lockstep
