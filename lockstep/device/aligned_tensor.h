#pragma once

#include <torch/types.h>

namespace lockstep {

/// Returns a tensor with the elements of `tensor` that is dense and starts at a
/// multiple of 64 bytes: `tensor` itself if it does, else a copy with the same
/// order of strides. Use it for everything that a shard computes from.
///
/// Kernels may round in another way if memory starts elsewhere (MKL's matrix
/// products do), and a chunk of a batch starts anywhere. A new tensor starts at
/// such a multiple, so a rank that has only the chunk would compute other bits
/// than a process that has the whole batch.
torch::Tensor aligned(const torch::Tensor& tensor);

}  // namespace lockstep
