#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/device/device.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"
#include "lockstep/parallel/replicas/first_step.h"
#include "lockstep/parallel/replicas/verified_pass.h"

namespace lockstep {

/// The shards of a batch that a rank computed, and the loss function.
struct ComputedShards {
  const ShardLoss& loss;
  LossReduction reduction;
  int64_t dim;
  const Device& device;  ///< that the shards are brought together on
  /// The target of all shards, in which tensors may be shared().
  const c10::IValue& target;
  /// The first shard's part of it.
  const c10::IValue& first_target;
  // Of each shard: its output and loss, and its samples.
  const std::vector<ShardPass>& passes;
  const std::vector<int64_t>& samples;
};

/// Checks that the loss of all shards together is what a step takes it for: the
/// mean of the shards' losses, weighted by their samples or the weights that
/// they state, or their sum (LossReduction). A rank with one shard cuts that
/// into two halves instead.
///
/// Calls the loss function for the whole, and last once more for the first
/// shard: a loss that gives another value then can't be checked. Losses are
/// compared up to the rounding of their type. Called in the thread of the first
/// shard's device.
void check_loss_is_mean(const ComputedShards& shards,
                        FirstStep::Findings& findings);

}  // namespace lockstep
