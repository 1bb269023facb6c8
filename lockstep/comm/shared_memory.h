#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <torch/torch.h>

namespace lockstep {

/// Memory of every rank of a world on one host, mapped in every rank. It goes
/// when the last rank that has it does, however that ends. A value: copies are
/// the same memory, and tensors in it keep it.
class SharedMemory {
 public:
  /// Of `rank`; starts at a page.
  std::span<std::byte> of(int rank) const;
  int ranks() const;
  /// The bytes from `offset` (a multiple of 64) of rank's memory as a tensor.
  torch::Tensor tensor(int rank, size_t offset, at::IntArrayRef sizes,
                       at::ScalarType type) const;

  class Impl;
  explicit SharedMemory(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lockstep
