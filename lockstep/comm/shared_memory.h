#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

namespace lockstep {

namespace transport {
struct RankMemory;
}

/// Memory of every rank of a group on one host, mapped in every rank. The
/// kernel frees it when the last rank that maps it ends, even if that rank is
/// killed. Copies refer to the same memory, and tensors in it keep it alive.
class SharedMemory {
 public:
  SharedMemory() = default;

  int ranks() const;
  /// Returns the memory of `rank`, which starts at a page.
  std::span<std::byte> of(int rank) const;
  /// Returns the offset of the elements of `tensor`, which is dense, in the
  /// memory of `rank`, or nothing if not all of them are there.
  std::optional<size_t> offset_of(int rank, const torch::Tensor& tensor) const;
  /// Returns an object that keeps the memory of `rank` mapped here, but not
  /// that of other ranks.
  std::shared_ptr<const void> owner_of(int rank) const;
  /// Returns a tensor of the bytes from `offset` (a multiple of 64) of the
  /// memory of `rank`. Throws InvalidArgument if the tensor does not fit.
  torch::Tensor tensor(int rank, size_t offset, at::IntArrayRef sizes,
                       at::ScalarType type) const;

  /// Takes the memory of all ranks, by rank (transport::Transport::share()).
  using Ranks = std::vector<transport::RankMemory>;
  explicit SharedMemory(std::shared_ptr<const Ranks> ranks);

 private:
  std::shared_ptr<const Ranks> ranks_;
};

/// Returns a tensor laid out like `like` at `offset` of the memory of `rank`.
/// Its bytes must be inside that memory, which it keeps alive.
torch::Tensor shared_tensor(const SharedMemory& memory, int rank, size_t offset,
                            const torch::Tensor& like);

/// Returns whether `tensor` was made by shared_tensor(), or is a view of such a
/// tensor. Writes to it are seen by all ranks.
bool is_shared_tensor(const torch::Tensor& tensor);

/// Moves a shared tensor to private memory, with the same values. Leaves other
/// tensors unchanged.
void unshare(torch::Tensor& tensor);

}  // namespace lockstep
