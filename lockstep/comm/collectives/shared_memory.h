#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <torch/torch.h>

#include "lockstep/shm/segment.h"

namespace lockstep {

/// Memory of every rank of a world on one host, mapped in every rank. It goes
/// when the last rank that has it does, however that ends. A value: copies are
/// the same memory, and tensors in it keep it.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// One segment for each rank, with the bytes that the rank asked for.
  SharedMemory(std::vector<std::shared_ptr<const shm::Segment>> segments,
               std::vector<size_t> bytes);

  int ranks() const { return static_cast<int>(impl_->bytes.size()); }
  /// Of `rank`; starts at a page.
  std::span<std::byte> of(int rank) const;
  /// Keeps rank's memory mapped here, and no other's.
  std::shared_ptr<const void> owner_of(int rank) const {
    return impl_->segments.at(static_cast<size_t>(rank));
  }
  /// The bytes from `offset` (a multiple of 64) of rank's memory as a tensor.
  /// Throws InvalidArgument if they don't fit.
  torch::Tensor tensor(int rank, size_t offset, at::IntArrayRef sizes,
                       at::ScalarType type) const;

 private:
  friend class ShmCollectives;
  struct Impl {
    std::vector<std::shared_ptr<const shm::Segment>> segments;
    std::vector<size_t> bytes;
  };

  std::shared_ptr<const Impl> impl_;
};

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
