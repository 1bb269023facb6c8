#include "lockstep/optim/blocks.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"

namespace lockstep::optim {

std::vector<Block> cut_into_blocks(std::span<const torch::Tensor> tensors) {
  // Accelerators have no such cache, and fewer blocks save launches. 64 are
  // enough to divide the work equally between devices.
  constexpr int64_t kMaxBlocks = 64;
  int64_t elements = 0;
  for (const torch::Tensor& tensor : tensors) elements += tensor.numel();
  const int64_t on_accelerator =
      round_up((elements + kMaxBlocks - 1) / kMaxBlocks, kBlockElements);
  std::vector<Block> blocks;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = tensors[i].numel();
    const int64_t most = tensors[i].is_cpu() ? kBlockElements : on_accelerator;
    for (int64_t at = 0; at < count; at += most) {
      blocks.push_back({.tensor = static_cast<int64_t>(i),
                        .offset = at,
                        .length = std::min(most, count - at)});
    }
  }
  return blocks;
}

bool can_be_cut(const torch::Tensor& parameter) {
  return parameter.defined() && parameter.is_floating_point() &&
         parameter.layout() == torch::kStrided &&
         parameter.is_non_overlapping_and_dense();
}

int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

torch::Tensor laid_out_like(const torch::Tensor& gradient,
                            const torch::Tensor& parameter) {
  if (gradient.layout() != torch::kStrided) {
    throw ParallelError("optim",
                        {.code = ErrorCode::kBadTensor,
                         .what = "a parameter got a sparse gradient",
                         .expected = "a dense one",
                         .got = gradient.toString(),
                         .fix = "build the embedding with sparse(false)"});
  }
  if (gradient.scalar_type() == parameter.scalar_type() &&
      gradient.device() == parameter.device() &&
      gradient.strides() == parameter.strides()) {
    return gradient;
  }
  torch::Tensor copy = torch::empty_like(parameter.detach());
  copy.copy_(gradient.detach());
  return copy;
}

}  // namespace lockstep::optim
