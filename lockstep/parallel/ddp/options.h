#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/arg.h>

#include "lockstep/device/device.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep {

/// What the ranks' gradients become.
enum class GradientAverage {
  kRanks,    ///< their mean, as in PyTorch
  kSamples,  ///< weighted by the ranks' samples: the mean over the whole batch,
             ///< however uneven the split
  kNone,     ///< their sum
};

/// Names of torch's DistributedDataParallel where it has them, and its defaults
/// but for gradient_as_bucket_view.
struct DistributedDataParallelOptions {
  /// Takes rank 0's parameters and buffers at construction.
  TORCH_ARG(bool, init_sync) = true;
  /// Takes rank 0's buffers (BatchNorm statistics) after every step.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// MiB of gradients that are exchanged in one go.
  TORCH_ARG(double, bucket_cap_mb) = 25;
  /// Lets a backward leave parameters without a gradient: they count as zeros,
  /// and those that no rank used keep their .grad. Costs an exchange of one
  /// byte for each parameter.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// After a backward .grad may lie in a bucket, which the next one writes to.
  /// Off: .grad is memory of its own, which costs a copy of those that are not
  /// summed where autograd made them.
  TORCH_ARG(bool, gradient_as_bucket_view) = true;
  /// The same parameters get gradients, as often, in every step: found out in
  /// the first. Allows backward passes within the backward (checkpointing).
  TORCH_ARG(bool, static_graph) = false;
  TORCH_ARG(GradientAverage, average) = GradientAverage::kRanks;
  /// The batch dimension of the first input; kSamples counts along it.
  TORCH_ARG(int64_t, dim) = 0;
  /// Names of parameters and buffers that are each rank's own affair.
  TORCH_ARG(std::vector<std::string>, parameters_to_ignore);

  // For train_step() alone.

  /// Where this rank computes. Default: the GPU that the module is on, or this
  /// rank's part of the cores of its host.
  TORCH_ARG(std::optional<Device>, device) = std::nullopt;
  /// What each rank has a part of only. The optimizer's state is made by
  /// make_state(); that of LibTorch's SGD, Adam and AdamW need not be.
  TORCH_ARG(ZeroStage, zero) = ZeroStage::kNone;
  /// Logical shards that a batch of all ranks is cut into; 0: one per rank.
  TORCH_ARG(int64_t, shards) = 0;
  /// Threads a shard computes with; 0: the cores of all ranks / shards.
  TORCH_ARG(int, intra_op_threads) = 0;
  /// Of the random streams, keyed by (seed, step, shard). Default: the seed of
  /// LibTorch's default generator (torch::manual_seed).
  TORCH_ARG(std::optional<uint64_t>, seed) = std::nullopt;
  /// As DataParallelOptions::verify_first_step.
  TORCH_ARG(bool, verify_first_step) = true;
};

/// What happens when some ranks have no inputs left and others have.
struct JoinOptions {
  /// Gradients are divided by the number of all ranks, also when some have no
  /// inputs left; else by those that still have. (GradientAverage::kRanks.)
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// Instead of waiting for the others, an exception on every rank.
  TORCH_ARG(bool, throw_on_early_termination) = false;
};

}  // namespace lockstep
