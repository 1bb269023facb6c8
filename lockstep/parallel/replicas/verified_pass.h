#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/replicas/shard_backward.h"

namespace lockstep {

/// A forward and a backward of one shard.
struct ShardPass {
  /// The output of forward(), without its graph, if it was asked for.
  c10::IValue output;
  /// Checksums of the parameters' gradients, by unique parameter, if they were
  /// asked for. "": no gradient.
  std::vector<std::string> gradient_sums{};
  torch::Tensor loss;
  /// Samples, or the weight that the loss function returned (`states_weight`).
  double weight = 0;
  bool states_weight = false;
  /// The gradient that the backward starts from, without the loss scale.
  double seed = 0;
  ShardGradients gradients;
  /// Gradients of a trial backward, if a shard without a backward of its own
  /// (seed 0) is compared. They are summed nowhere.
  std::optional<ShardGradients> trial_gradients;
  const ShardGradients& compared_gradients() const {
    return trial_gradients ? *trial_gradients : gradients;
  }
  /// What stood for the shard's inputs that require grad.
  std::vector<torch::Tensor> input_leaves;
  /// The replica's leaves in the order in which their gradients came, each with
  /// its place among the unique parameters.
  std::vector<std::pair<size_t, torch::Tensor>> arrivals;
};

struct VerifiedPass {
  /// What two computations agree on.
  ShardPass pass;
  /// A third computation was needed: one of the first two was wrong.
  bool is_repaired = false;
};

/// Computes a shard's loss, gradients and buffers twice from the same weights,
/// buffers and random numbers, and once more if the two have other bits: finds
/// a processor that computes wrong at times, and memory that changes. No more
/// than one computation's gradients are held at a time.
///
/// Called in the thread of the replica's device. Throws TrainError if no two of
/// three agree, as with a module that counts its calls or a kernel that adds in
/// any order.
VerifiedPass verified_pass(Replica& replica,
                           const std::function<ShardPass()>& compute);

}  // namespace lockstep
