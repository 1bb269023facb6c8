#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

namespace lockstep::optim {

/// Elements a block has at most: with the gradients, parameter and state of
/// the block it stays in a core's second-level cache.
inline constexpr int64_t kBlockElements = 16 * 1024;

/// `length` elements of tensor `tensor` from `offset`, in the order of its
/// memory.
struct Block {
  int64_t tensor;
  int64_t offset;
  int64_t length;
};

/// Cuts dense tensors into blocks. The cuts depend on their sizes alone, so
/// what is computed block by block has the same bits whoever does a block.
std::vector<Block> cut_into_blocks(std::span<const torch::Tensor> tensors);

/// A block of a dense tensor as a 1-d view outside of autograd.
inline torch::Tensor memory_view(const torch::Tensor& tensor, int64_t offset,
                                 int64_t length) {
  return tensor.detach().as_strided({length}, {1},
                                    tensor.storage_offset() + offset);
}

/// All elements of a dense tensor, likewise.
inline torch::Tensor memory_view(const torch::Tensor& tensor) {
  return memory_view(tensor, 0, tensor.numel());
}

/// `gradient` with the strides, type and device of `parameter`: itself, or a
/// copy. Throws ParallelError for a sparse gradient.
torch::Tensor laid_out_like(const torch::Tensor& gradient,
                            const torch::Tensor& parameter);

}  // namespace lockstep::optim
