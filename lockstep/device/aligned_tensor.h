#pragma once

#include <torch/types.h>

namespace lockstep {

/// Returns a dense tensor that starts at a multiple of 64 bytes and has the
/// elements of `tensor`: `tensor` itself if it is such a tensor, else a copy
/// with the same order of strides. Use it for everything that a shard computes
/// from.
///
/// Kernels may round differently if memory starts elsewhere (MKL's matrix
/// products do), and a chunk of a batch may start anywhere. A new tensor starts
/// at such a multiple, so a rank that has only the chunk would compute
/// different bits than a process that has the whole batch.
torch::Tensor aligned(const torch::Tensor& tensor);

}  // namespace lockstep
