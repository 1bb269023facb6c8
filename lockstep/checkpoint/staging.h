#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Copies of many tensors, cut into pieces for all intra-op threads of the
/// caller.
class CopyPlan {
 public:
  /// Both are alike in sizes, strides and type, and `to` is on the host.
  void add(const torch::Tensor& from, const torch::Tensor& to);
  /// Leaves only what worker `worker` of so many has to copy.
  void keep_share(int worker, int workers);
  void run() const;

 private:
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  // What is not on the host, or not dense.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> whole_;
};

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
