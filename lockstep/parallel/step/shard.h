#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/group/step_clock.h"
#include "lockstep/parallel/step/shard_backward.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

/// Result of a forward and a backward of one shard.
struct ShardPass {
  torch::Tensor loss;  ///< without its graph
  /// Number of samples, or the weight that the loss function returned
  /// (`states_weight`).
  double weight = 0;
  bool states_weight = false;
  /// Gradient that the backward starts from, without the loss scale.
  double seed = 0;
  ShardGradients gradients;
  /// Leaves that stand for the shard's inputs that require grad.
  std::vector<torch::Tensor> input_leaves;
  /// True if verified_pass() made a third computation, because one of the first
  /// two was wrong.
  bool is_repaired = false;
};

/// Computes one shard of a batch on a replica, in the thread of its device:
///
///     Shard shard(group, batch, worker, index, replica, Shard::Mode::kStep);
///     shard.forward(shard.part());
///     shard.compute_loss(loss, options.loss_reduction());
///     ShardPass pass = shard.backward(options.loss_scale());
class Shard {
 public:
  enum class Mode {
    kStep,
    /// Computes the forward of a user's loop or of an evaluation. Only a step
    /// tells the clock's watcher what it does.
    kForward,
    /// Computes the same without the effects of a step: calls no callbacks of
    /// the options, and does not count towards the step's time and buffers.
    /// The replica must be loaded, or be the module itself.
    kCheck,
  };

  /// `index` is that of the shard among those of all ranks.
  Shard(ReplicaGroup& group, const StepBatch& batch, size_t worker,
        int64_t index, Replica& replica, Mode mode = Mode::kStep)
      : group_(group),
        batch_(batch),
        worker_(worker),
        index_(index),
        replica_(replica),
        mode_(mode) {}

  /// Returns the shard's part of the batch.
  const c10::IValue& part() const {
    return batch_.parts[batch_.part_of(index_)];
  }
  Replica& replica() const { return replica_; }

  /// Runs the replica's forward on `part`, the shard's part of the batch or a
  /// copy of it, and returns the output. Dropped by backward().
  const c10::IValue& forward(const c10::IValue& part);
  const c10::IValue& output() const { return output_; }
  /// Passes on to the batch what forward() wrote to its inputs, as backward()
  /// does.
  void pass_on_writes() const;
  /// Returns the target of the shard's samples, after forward().
  const c10::IValue& target() const { return target_; }
  /// Computes the loss of the output, a scalar with a graph, and its weight.
  void compute_loss(const ShardLoss& loss, LossReduction reduction);
  /// Returns the loss with its graph.
  const torch::Tensor& loss() const { return pass_.loss; }
  /// Returns the gradient that the backward starts from (ShardPass::seed).
  double seed() const { return pass_.seed; }
  /// Returns the results of a shard without backward(). The loss, if it was
  /// computed, has its graph.
  ShardPass take_pass() { return std::move(pass_); }
  /// Returns the leaves that the shard's gradients belong to.
  ShardLeaves leaves() const {
    return {replica_, group_.unique(), group_.parameters(), pass_.input_leaves};
  }
  /// Runs the backward of the loss times `loss_scale`, and returns the results.
  /// Before that, passes on to the batch what forward() wrote to its inputs.
  /// `on_gradient` is that of ShardLeaves. A shard that does not contribute to
  /// the loss of the batch (weight 0) has no gradients.
  ShardPass backward(double loss_scale,
                     std::function<void(size_t p, const torch::Tensor& leaf)>
                         on_gradient = {});

 private:
  /// Measures a phase, unless it is that of a check.
  StepClock::Span time(StepClock::Phase phase, const char* name) const;
  void enter(StepPhase phase) const;

  ReplicaGroup& group_;
  const StepBatch& batch_;
  size_t worker_;
  int64_t index_;
  Replica& replica_;
  Mode mode_;
  c10::IValue part_;
  c10::IValue chunk_;  // part_ without the caller's graph
  c10::IValue target_;
  c10::IValue output_;
  ShardPass pass_;
};

}  // namespace lockstep
