#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// A plan to copy many tensors, in pieces for all intra-op threads of the
/// caller.
class CopyPlan {
 public:
  /// Both have the same sizes, strides and type. `to` is on the host.
  void add(const torch::Tensor& from, const torch::Tensor& to);
  /// Keeps only the share that worker `worker` of `workers` has to copy.
  void keep_share(int worker, int workers);
  void run() const;

 private:
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  // Tensors that are not on the host, or not dense.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> whole_;
};

/// Host memory that tensors are copied to. It is reused for the next copies.
class Staging {
 public:
  /// Returns a copy of each tensor, of the same type and strides, made by all
  /// intra-op threads of the caller at once. The copies are valid until the
  /// next call.
  std::vector<torch::Tensor> copy(const std::vector<torch::Tensor>& tensors);

 private:
  std::vector<torch::Tensor> memory_;
};

}  // namespace lockstep
