#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/step/shard.h"
#include "lockstep/parallel/step/shard_backward.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

/// Gradients of tensors outside of the module, from which a backward continues
/// in the caller's graph: inputs that require grad, and leaves of the loss.
class OuterGradients {
 public:
  /// Adds a gradient. Does nothing if it is undefined.
  void add(const torch::Tensor& tensor, torch::Tensor gradient);
  /// Adds the gradients of leaves that shards reached, `others[shard]`, summed
  /// along the tree.
  void add_sums(std::vector<std::vector<OtherLeaf>> others);

  void multiply(double factor);

  bool empty() const { return tensors_.empty(); }
  /// Runs a backward from the tensors: adds to the .grad of leaves, calls
  /// hooks, and continues where a tensor was computed from others.
  void backward() &&;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> gradients_;
};

/// Takes the gradients of the tensors outside of the module, the inputs of
/// `batch` and other leaves, from `passes`, one for each of this rank's shards.
/// `dim` is the dimension of the samples. Unless the rank `is_alone`, throws if
/// there are other leaves (refuse_foreign_leaves()).
OuterGradients take_outer_gradients(const StepBatch& batch,
                                    std::vector<ShardPass>& passes, int64_t dim,
                                    bool is_alone);

/// Throws ParallelError if the shards' losses depend on a leaf outside of the
/// module, for which each rank would have its own gradient. Leaves that the
/// module or the loss makes (x.detach().requires_grad_()) are allowed: they are
/// freed with the graph, so nothing can be trained with their gradients.
void refuse_foreign_leaves(std::vector<std::vector<OtherLeaf>> others);

}  // namespace lockstep
