#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/step/differentiable_inputs.h"

namespace lockstep {

/// A batch that is cut into shards. A batch, and each part of it, is a tuple of
/// the arguments of forward(), followed by the target (None in a forward of a
/// user's loop).
struct StepBatch {
  c10::IValue all;  ///< the samples of this rank. Tensors may be shared()
  DifferentiableInputs differentiable;  ///< the tensors in `all` with a graph
  int64_t samples = 0;                  ///< of all ranks that take part
  int64_t own_samples = 0;              ///< of this rank
  std::vector<int64_t> shard_samples;   ///< by shard, of all ranks
  std::vector<c10::IValue> parts;       ///< this rank's shards

  size_t first_shard = 0;  ///< index of parts[0] among the shards of all ranks

  /// Returns the index in `parts` of this rank's shard `index`.
  size_t part_of(int64_t index) const {
    return static_cast<size_t>(index) - first_shard;
  }
  /// Returns the number of shards of all ranks.
  int64_t shards() const { return static_cast<int64_t>(shard_samples.size()); }
};

/// Cuts a batch into the shards of `group`. `all_samples` is the number of
/// samples of all ranks, or -1 if all ranks have as many. With several ranks,
/// throws ParallelError unless this rank passes the samples of its own shards.
/// `needs_graph` is false in an evaluation.
StepBatch cut_batch(ReplicaGroup& group, std::vector<c10::IValue> arguments,
                    const c10::IValue& target, int64_t all_samples,
                    bool needs_graph);

/// Cuts the inputs of a forward of a user's loop into this rank's shards. They
/// are samples of this rank alone. Without arguments, there is one shard.
StepBatch cut_forward(ReplicaGroup& group, std::vector<c10::IValue> arguments,
                      bool needs_graph);

/// Returns the arguments of forward() and the target in a tuple that has both.
std::pair<std::vector<c10::IValue>, c10::IValue> arguments_and_target(
    const c10::IValue& tuple);

/// Returns `batch` with only the first `samples` samples of each shard. Returns
/// `batch` itself if a tensor can't be cut into samples.
StepBatch first_samples_of(const StepBatch& batch, const ReplicaGroup& group,
                           int64_t samples);

}  // namespace lockstep
