#pragma once

#include <functional>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

/// A leaf of a shard's graph that is not a parameter of the replica, such as a
/// parameter of the original that the loss uses, or a learnable weight of the
/// loss.
struct OtherLeaf {
  torch::Tensor leaf;
  OwnedGradient gradient;
};

/// Gradients computed by the backward of a shard.
struct ShardGradients {
  /// One gradient for each unique parameter of the original.
  std::vector<OwnedGradient> parameters;
  /// One gradient for each input of the shard that requires grad.
  std::vector<torch::Tensor> inputs;
  /// Other leaves, in the order of a walk over the graph.
  std::vector<OtherLeaf> others;
  /// Whether a parameter's gradient was added up from several parts: the direct
  /// use of the parameter in the loss, or a backward within the backward.
  /// Another way of computing it may add the same parts in another order.
  bool has_several_parts = false;
};

/// Leaves that a shard's gradients belong to.
struct ShardLeaves {
  Replica& replica;
  /// Index among the unique parameters for each parameter of the replica.
  const std::vector<size_t>& unique;
  /// The original's unique parameters. Gradients from their direct use in the
  /// loss are added to the replica's gradients.
  std::span<const torch::Tensor> originals;
  /// Leaves that stand for the shard's inputs that require grad.
  const std::vector<torch::Tensor>& inputs;
  /// If set, called in the backward after a gradient was added to the leaf that
  /// stands for unique parameter `p`. This usually happens once, and never for
  /// a gradient that is captured or made of several. A later call may take the
  /// leaf's .grad, after autograd has released it. The gradient is then not
  /// returned.
  std::function<void(size_t p, const torch::Tensor& leaf)> on_gradient = {};
  /// True in a backward that runs in the middle of another one through the same
  /// leaves. It leaves their .grad to the other one.
  bool is_interposed = false;
};

/// Runs the backward of one shard from `roots` in the calling thread.
/// `gradients` are the gradients of `roots`. Roots with an undefined gradient
/// are skipped.
///
/// A leaf that several shards reach is not written to here, because threads
/// would add to its .grad in any order. Its part of the gradient is returned
/// instead, to be summed along the tree.
///
/// If the backward throws, no gradients are left in the replica. Throws
/// ParallelError if a leaf that several shards reach has a hook, which would
/// see only a part of the gradient.
ShardGradients shard_backward(const std::vector<torch::Tensor>& roots,
                              const std::vector<torch::Tensor>& gradients,
                              bool keep_graph, const ShardLeaves& leaves);

/// Returns the gradients of a trial backward from `output`, the value of a
/// forward, which is made only to compare them. This function chooses the
/// gradients of the output and keeps the graph. Tensors of `output` without a
/// graph are skipped.
ShardGradients trial_backward(const c10::IValue& output,
                              const ShardLeaves& leaves);

/// Returns the leaves in which a backward from `roots`, which require grad,
/// accumulates gradients. They are in the order of a depth-first walk, which
/// depends only on the graph.
std::vector<torch::Tensor> leaves_below(
    const std::vector<torch::Tensor>& roots);

/// Returns whether a backward would call a user's hook on the gradient of
/// `leaf`.
bool has_hooks(const torch::Tensor& leaf);

}  // namespace lockstep
