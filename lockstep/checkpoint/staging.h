#pragma once

#include <vector>

#include <torch/torch.h>

namespace lockstep {

/// Memory on the host that tensors are copied to, kept for the next time.
class Staging {
 public:
  /// A copy of each tensor, of the same type and strides, made by all intra-op
  /// threads of the caller at once. It holds until the next call.
  std::vector<torch::Tensor> copy(const std::vector<torch::Tensor>& tensors);

 private:
  std::vector<torch::Tensor> memory_;
};

}  // namespace lockstep
