#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace lockstep {

/// Tracks which tensors of a batch require grad. Each shard computes with
/// leaves that stand for its chunks of them, so the shards' graphs share
/// nothing. The gradients of the leaves make up the gradients of the batch's
/// tensors. For a tensor that is shared(), each shard has a leaf for the whole
/// tensor.
class DifferentiableInputs {
 public:
  /// `batch` may nest tensors. Without `needs_graph`, no tensor counts as
  /// requiring grad.
  explicit DifferentiableInputs(const c10::IValue& batch,
                                bool needs_graph = true);

  /// The tensors that require grad, in the order of tensors_in().
  const std::vector<torch::Tensor>& tensors() const { return tensors_; }

  /// Returns `part`, a shard's part of the batch, detached from the caller's
  /// graph, with a new leaf for each chunk of tensors(). Appends the leaves to
  /// `leaves`. The chunks are aligned(), and are copied if necessary.
  c10::IValue cut_from_graph(const c10::IValue& part,
                             std::vector<torch::Tensor>& leaves) const;

  /// Returns `part` with the samples of its second half, each twice. These are
  /// other samples for the same shapes, and in the same order.
  c10::IValue with_other_samples(const c10::IValue& part, int64_t dim) const;

  /// Propagates a forward's writes to `cut`, its copy of `part`, to the batch
  /// and to the graphs that saved it. A backward through those graphs is then
  /// refused, as in LibTorch. `shards` is the number of shards that compute at
  /// once. Throws ParallelError if there are several and the forward wrote to a
  /// tensor that is shared().
  void pass_on_writes(const c10::IValue& part, const c10::IValue& cut,
                      int64_t shards) const;

  /// Throws ParallelError if one of tensors() is shared(): each rank would have
  /// its own gradient for a tensor that all ranks use.
  void check_none_is_shared() const;

  /// Returns the gradient of each of tensors(), on its device, from
  /// `gradients[shard][i]`. They are concatenated along `dim`, with zeros for a
  /// shard without a gradient. If the tensor is shared(), they are summed along
  /// the tree. The result is undefined if no shard has a gradient.
  /// `leaves[shard][i]` gives the shapes.
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
