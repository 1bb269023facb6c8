#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/step/shard.h"
#include "lockstep/parallel/step/step_attachment.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

/// Part of a shard's pass to be computed. kForwardOfOthers is a forward of
/// other samples (DifferentiableInputs::with_other_samples()).
enum class Extent { kForward, kForwardOfOthers, kForwardAndBackward };

/// Results of a forward and a backward that are compared.
struct TrialPass {
  c10::IValue output;  ///< without its graph
  /// Without its graph. Undefined for a forward of a user's loop.
  torch::Tensor loss;
  ShardGradients gradients;
  /// Checksums of the parameters' gradients, by unique parameter. "": no
  /// gradient. A gradient whose checksum is here may already be freed.
  std::vector<std::string> gradient_sums;
};

/// A step, or a forward of a user's loop, that is computed only to compare its
/// results. It uses the step's batch, random numbers and threads, and leaves no
/// gradients in the replicas.
struct Trial {
  ReplicaGroup& group;
  const StepBatch& batch;
  ReplicaGroup::RandomStream stream;
  /// Null for a forward of a user's loop. The gradients are then those of a
  /// trial_backward() of the output.
  const ShardLoss* loss;
  LossReduction reduction = LossReduction::kMean;

  /// Returns the number of shards of all ranks that have samples.
  int64_t shards() const { return batch.shards(); }
  /// Returns the index of this rank's shard `part` among those of all ranks.
  int64_t index_of(size_t part) const {
    return static_cast<int64_t>(batch.first_shard + part);
  }
  /// Runs `task` for this rank's shard `part` in the thread of its device, with
  /// the random numbers of the step.
  void on_shard(size_t part,
                const std::function<void(Replica& replica)>& task) const {
    group.on_shard(index_of(part), shards(), stream, task);
  }
  /// Computes this rank's shard `part` with `replica`, which is loaded, or the
  /// module itself. Must be called in a shard's task.
  TrialPass compute(Replica& replica, size_t part, Extent extent) const;
  /// Computes the forward and the loss of this rank's first shard, and calls
  /// `visit` with the loss, which has its graph. Writes to buffers remain.
  void on_first_graph(
      const std::function<void(const torch::Tensor& loss,
                               const Replica& replica)>& visit) const;
  /// Computes the forward and the loss of all shards of this rank with their
  /// replicas. `outputs` receives the output of each, without its graph. Writes
  /// to buffers remain.
  std::vector<ShardPass> compute_losses(
      std::vector<c10::IValue>& outputs) const;
};

/// Returns the trial of a step.
Trial trial_of(const StepContext& step);

}  // namespace lockstep
