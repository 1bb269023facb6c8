#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

/// A leaf of a shard's graph that is no parameter of the replica: a parameter
/// of the original that the loss uses, a learnable weight of the loss.
struct OtherLeaf {
  torch::Tensor leaf;
  OwnedGradient gradient;
};

/// The gradients that the backward of a shard computes.
struct ShardGradients {
  /// One for each unique parameter of the original.
  std::vector<OwnedGradient> parameters;
  /// One for each input of the shard that requires grad.
  std::vector<torch::Tensor> inputs;
  /// In the order in which a walk over the graph meets them.
  std::vector<OtherLeaf> others;
  /// A parameter's gradient was added up from several parts: what the loss took
  /// from it directly, or a backward within the backward. The same parts may be
  /// added in another order when it is computed in another way.
  bool has_several_parts = false;
};

/// Which parameters a shard's gradients belong to.
struct ShardLeaves {
  Replica& replica;
  /// For each parameter of the replica its place among the unique ones.
  const std::vector<size_t>& unique;
  /// The original's unique parameters: what the loss takes from them directly
  /// is added to the replica's gradient.
  std::span<const torch::Tensor> originals;
  /// Leaves that stand for the shard's inputs that require grad.
  const std::vector<torch::Tensor>& inputs;
  /// If set, told in the backward when a gradient was added to the leaf that
  /// stands for unique parameter `p`: mostly once; not at all of a gradient
  /// that is captured or made of several. Who is told may take the leaf's .grad
  /// at a later call, when autograd has let go of it; it does not come back
  /// then.
  std::function<void(size_t p, const torch::Tensor& leaf)> on_gradient = {};
};

/// Runs the backward of one shard from `roots`, whose gradients are
/// `gradients` (undefined ones are left out), in the calling thread.
///
/// A leaf that several shards reach is not written to here: threads would add
/// to its .grad in the order in which they come. Its part of the gradient is
/// returned instead, to be summed along the tree.
///
/// If the backward throws, nothing is left behind in the replica.
/// Throws ParallelError if such a leaf has a hook, which would see a part of
/// the gradient.
ShardGradients shard_backward(const std::vector<torch::Tensor>& roots,
                              const std::vector<torch::Tensor>& gradients,
                              bool keep_graph, const ShardLeaves& leaves);

/// Returns the gradients of a backward from `output`, a forward's value, that
/// is made only to compare them. The gradients of the output are chosen here,
/// and the graph is kept. Tensors of `output` without a graph are left out.
ShardGradients trial_backward(const c10::IValue& output,
                              const ShardLeaves& leaves);

/// The leaves whose gradient a backward from `roots`, which require grad,
/// accumulates; in the order of a depth-first walk, which is that of the graph
/// alone.
std::vector<torch::Tensor> leaves_below(
    const std::vector<torch::Tensor>& roots);

/// Whether a backward would call a hook of the user's on `leaf`'s gradient.
bool has_hooks(const torch::Tensor& leaf);

}  // namespace lockstep
