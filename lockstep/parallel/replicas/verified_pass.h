#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/replicas/shard_backward.h"

namespace lockstep {

/// Result of a forward and a backward of one shard.
struct ShardPass {
  /// Output of forward(), without its graph, if requested.
  c10::IValue output;
  /// Checksums of the parameters' gradients, by unique parameter, if requested.
  /// "": no gradient.
  std::vector<std::string> gradient_sums{};
  torch::Tensor loss;
  /// Number of samples, or the weight that the loss function returned
  /// (`states_weight`).
  double weight = 0;
  bool states_weight = false;
  /// Gradient that the backward starts from, without the loss scale.
  double seed = 0;
  ShardGradients gradients;
  /// Gradients of a trial backward, made if a shard without a backward (seed 0)
  /// is compared. They are not part of any sum.
  std::optional<ShardGradients> trial_gradients;
  const ShardGradients& compared_gradients() const {
    return trial_gradients ? *trial_gradients : gradients;
  }
  /// Leaves that stand for the shard's inputs that require grad.
  std::vector<torch::Tensor> input_leaves;
  /// True for each unique parameter of which a cast is the only use
  /// (are_cast_once()), if requested.
  std::vector<bool> cast_once{};
  /// Whether verified_pass() made a third computation, because one of the first
  /// two was wrong.
  bool is_repaired = false;
};

/// Returns the result on which two computations of a shard's loss, gradients
/// and buffers agree. Computes them twice from the same weights, buffers and
/// random numbers, and once more if the bits differ. This detects a processor
/// that sometimes computes wrong results, and memory that changes. Holds the
/// gradients of at most one computation at a time.
///
/// Must be called in the thread of the replica's device. Throws TrainError if
/// no two of three computations agree, for example with a module that counts
/// its calls or a kernel that adds in any order.
ShardPass verified_pass(Replica& replica,
                        const std::function<ShardPass()>& compute);

}  // namespace lockstep
