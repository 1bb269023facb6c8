#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/step/shard.h"
#include "lockstep/parallel/trial/findings.h"

namespace lockstep {

/// Shards of a batch that a rank computed, and the loss function.
struct ComputedShards {
  const ShardLoss& loss;
  LossReduction reduction;
  int64_t dim;
  /// Replica that computed the first shard. The shards are gathered on its
  /// device.
  const Replica& replica;
  /// Arguments of forward() for all shards. Their tensors may be shared().
  const std::vector<c10::IValue>& inputs;
  /// Target of all shards. Its tensors may be shared().
  const c10::IValue& target;
  /// The first shard's part of `target`.
  const c10::IValue& first_target;
  // Loss of each shard, its output without the graph, and its number of
  // samples.
  const std::vector<ShardPass>& passes;
  const std::vector<c10::IValue>& outputs;
  std::span<const int64_t> samples;
};

/// Checks that the loss of all shards together is what a step assumes: the mean
/// of the shards' losses and of the samples' losses, weighted by their samples
/// or by the weights that they state, or their sum (LossReduction). With more
/// than 256 samples, at most 256 groups of samples are used instead of single
/// samples. Returns the first sample, a tuple of its output and its target,
/// if it has to be compared with those of other ranks.
///
/// Calls the loss function for the whole and for the parts, and at the end once
/// more for the first shard. A loss that then gives another value can't be
/// checked. Losses are compared up to the rounding of their type. Losses of
/// samples are computed in float if the outputs are half or bfloat16 and the
/// loss function accepts float. Called in the thread of the first shard's
/// device.
///
/// If the module returns a scalar, the loss itself, the check computes the loss
/// of a few samples with the module (ModuleLoss).
std::optional<c10::IValue> check_loss_is_mean(const ComputedShards& shards,
                                              Findings& findings);

/// Returns the samples of all ranks of `world`. Returns nothing if a rank has
/// no sample, or if their shapes differ, which is then recorded in `findings`.
/// Collective.
std::vector<c10::IValue> gather_samples(const ProcessGroup& world,
                                        const std::optional<c10::IValue>& own,
                                        Findings& findings);

/// Makes the same check for one sample of each rank: losses that are a mean on
/// each rank may be means over different numbers of units (tokens of padded
/// text). Called in the thread of the first shard's device.
void check_loss_over_ranks(const ComputedShards& shards,
                           const std::vector<c10::IValue>& samples,
                           Findings& findings);

}  // namespace lockstep
