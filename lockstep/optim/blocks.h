#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

namespace lockstep::optim {

/// A block of `length` elements of tensor `tensor` from `offset`, in memory
/// order.
struct Block {
  int64_t tensor;
  int64_t offset;
  int64_t length;
};

/// Largest number of elements in a block on the CPU. The gradients, parameters
/// and state of a block fit in a core's second-level cache.
inline constexpr int64_t kBlockElements = 16 * 1024;

/// Cuts dense tensors into blocks. On an accelerator, a large tensor has blocks
/// of 1/64 of the elements of all tensors, rounded up to a multiple of
/// kBlockElements. The cuts depend only on the sizes of the tensors, so the
/// bits of a result do not depend on which thread computes which block.
std::vector<Block> cut_into_blocks(std::span<const torch::Tensor> tensors);

/// Returns whether a parameter can be cut into blocks and optimized: it is
/// dense and of a floating type.
bool can_be_cut(const torch::Tensor& parameter);

int64_t bytes_of(const std::vector<torch::Tensor>& tensors);

/// Returns a block of a dense tensor as a 1-d view outside of autograd.
inline torch::Tensor memory_view(const torch::Tensor& tensor, int64_t offset,
                                 int64_t length) {
  return tensor.detach().as_strided({length}, {1},
                                    tensor.storage_offset() + offset);
}

/// Returns all elements of a dense tensor as a 1-d view outside of autograd.
inline torch::Tensor memory_view(const torch::Tensor& tensor) {
  return memory_view(tensor, 0, tensor.numel());
}

/// Returns `gradient` with the strides, type and device of `parameter`. Copies
/// it only if necessary. Throws ParallelError for a sparse gradient.
torch::Tensor laid_out_like(const torch::Tensor& gradient,
                            const torch::Tensor& parameter);

}  // namespace lockstep::optim
