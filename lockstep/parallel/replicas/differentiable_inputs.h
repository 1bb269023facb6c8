#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace lockstep {

/// Which tensors of a batch require grad. Each shard computes with leaves that
/// stand for its chunks of them, so that the shards' graphs share nothing; the
/// leaves' gradients make up the gradients of the batch's tensors. Of a tensor
/// that is shared() each shard has a leaf for the whole of it.
class DifferentiableInputs {
 public:
  /// `batch` may nest tensors. Without `needs_graph` none counts.
  explicit DifferentiableInputs(const c10::IValue& batch,
                                bool needs_graph = true);

  /// The tensors that require grad, in the order of for_each_tensor().
  const std::vector<torch::Tensor>& tensors() const { return tensors_; }

  /// Returns `part`, a shard's part of the batch, outside of the caller's
  /// graph: with a new leaf, appended to `leaves`, for each chunk of tensors().
  /// The chunks are aligned(): copies where they have to be.
  c10::IValue cut_from_graph(const c10::IValue& part,
                             std::vector<torch::Tensor>& leaves) const;

  /// If a forward wrote to its `cut` of `part`, passes that on to the batch and
  /// to the graphs that saved it: their backward is then refused, as in
  /// LibTorch. `shards` compute at once. Throws ParallelError if there are
  /// several and the forward wrote to a tensor that is shared().
  void pass_on_writes(const c10::IValue& part, const c10::IValue& cut,
                      int64_t shards) const;

  /// Throws ParallelError if one of tensors() is shared(): each rank would have
  /// its own gradient of a tensor that all of them use.
  void check_none_is_shared() const;

  /// Returns the gradient of each of tensors(), on its device, from
  /// `gradients[shard][i]`. They are concatenated along `dim`, with zeros for a
  /// shard without a gradient, or summed along the tree if the tensor is
  /// shared(). Undefined if no shard has a gradient. `leaves[shard][i]` gives
  /// the shapes.
  std::vector<torch::Tensor> gather(
      const std::vector<std::vector<torch::Tensor>>& gradients,
      const std::vector<std::vector<torch::Tensor>>& leaves, int64_t dim) const;

 private:
  struct Entry {
    bool requires_grad;
    bool is_shared;
    std::string path;
  };
  std::vector<Entry> entries_;  // for each tensor of the batch
  std::vector<torch::Tensor> tensors_;
  std::vector<bool> are_shared_;  // for each of tensors_
};

}  // namespace lockstep
