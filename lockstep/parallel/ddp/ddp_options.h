#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/arg.h>

#include "lockstep/device/device.h"
#include "lockstep/parallel/exchange/verify.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep {

/// Ways to combine the gradients of the ranks.
enum class GradientAverage {
  kRanks,    ///< the mean over the ranks, as in PyTorch
  kSamples,  ///< weighted by each rank's number of samples: the mean over the
             ///< whole batch, however uneven the split
};

/// DistributedDataParallel options. Names and defaults follow PyTorch, except
/// the default of gradient_as_bucket_view.
struct DistributedDataParallelOptions {
  /// Copies rank 0's parameters and buffers to all ranks at construction.
  TORCH_ARG(bool, init_sync) = true;
  /// Copies rank 0's buffers (BatchNorm statistics) to all ranks after every
  /// step.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// MiB of gradients that are exchanged together.
  TORCH_ARG(double, bucket_cap_mb) = 25;
  /// Allows a backward that gives some parameters no gradient. Those count as
  /// zeros, and parameters that no rank used keep their .grad. Costs an
  /// exchange of one byte for each parameter.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// Allows .grad to be a view of a bucket after a backward. The next backward
  /// writes to it. If false, .grad has its own memory, which costs a copy of
  /// the gradients that are not summed in the memory where autograd made them.
  TORCH_ARG(bool, gradient_as_bucket_view) = true;
  /// Promises that the same parameters get the same number of gradients in
  /// every step. The first step finds out which. Allows backward passes within
  /// the backward (checkpointing).
  TORCH_ARG(bool, static_graph) = false;
  /// kSamples: the weight of a rank in a backward is the number of samples in
  /// the forwards that the backward goes through. If no rank has any samples,
  /// all weights are equal.
  TORCH_ARG(GradientAverage, average) = GradientAverage::kRanks;
  /// Batch dimension of the first input. kSamples counts along it.
  TORCH_ARG(int64_t, dim) = 0;
  /// Names of parameters and buffers that are not synchronized between the
  /// ranks.
  TORCH_ARG(std::vector<std::string>, parameters_to_ignore);

  // Options used only by train_step().

  /// Device on which this rank computes. Default: the module's GPU, or this
  /// rank's part of the cores of its host.
  TORCH_ARG(std::optional<Device>, device) = std::nullopt;
  /// Data that is partitioned over the ranks, in steps with an SGD, Adam or
  /// AdamW.
  TORCH_ARG(ZeroStage, zero) = ZeroStage::kNone;
  /// Number of logical shards of a batch of all ranks. 0: one per rank.
  TORCH_ARG(int64_t, shards) = 0;
  /// Number of threads that compute a shard. 0: the cores of all ranks /
  /// shards.
  TORCH_ARG(int, intra_op_threads) = 0;
  /// Seed of the random streams, which are keyed by (seed, step, shard).
  /// Default: the seed of LibTorch's default generator (torch::manual_seed).
  TORCH_ARG(std::optional<uint64_t>, seed) = std::nullopt;
  /// Same as DataParallelOptions::verify, for train_step().
  TORCH_ARG(Verify, verify) = Verify::kDoubling;
  /// Same as DataParallelOptions::verify_ranks, also for backward().
  TORCH_ARG(bool, verify_ranks) = true;
  /// Same as DataParallelOptions::verify_memory.
  TORCH_ARG(bool, verify_memory) = false;
};

/// Options for join(), where some ranks run out of inputs before others.
struct JoinOptions {
  /// Divides gradients by the number of all ranks, even if some have no inputs
  /// left. If false, divides by the number of ranks that still have inputs.
  /// Applies to GradientAverage::kRanks.
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// Throws an exception on every rank instead of waiting for ranks that still
  /// have inputs.
  TORCH_ARG(bool, throw_on_early_termination) = false;
};

}  // namespace lockstep
