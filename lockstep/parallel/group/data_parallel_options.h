#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/arg.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/link.h"
#include "lockstep/losses/weighted_loss.h"
#include "lockstep/parallel/exchange/verify.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep {

/// Ways to keep the parameters of the replicas up to date.
enum class Replication {
  /// Replicas are kept. CPU slices share the original's storage. Parameters are
  /// copied to a GPU's replica when they change.
  kResident,
  /// Every forward copies all parameters to every replica, gathers the outputs
  /// and reduces the gradients on the output device, as in the textbook
  /// description of nn.DataParallel. Exists for measurements.
  kEveryForward,
};

/// Buffers (BatchNorm statistics) that are kept after a forward.
enum class Buffers {
  kFirstShard,  ///< the buffers of shard 0, as in PyTorch
  kMean,        ///< the mean over the shards (floating-point buffers)
};

/// Phases of train_step(), in order.
enum class StepPhase {
  kForward,    ///< forward of a shard, in its device's thread
  kBackward,   ///< backward of a shard, in its device's thread
  kAllReduce,  ///< combines the gradients of all ranks
  kUpdate,
};

/// Options of DataParallel, as in `DataParallelOptions().dim(1)`.
struct DataParallelOptions {
  /// Device where outputs are gathered. Default: the first device.
  TORCH_ARG(std::optional<Device>, output_device) = std::nullopt;
  /// Batch dimension.
  TORCH_ARG(int64_t, dim) = 0;
  TORCH_ARG(Replication, replication) = Replication::kResident;
  TORCH_ARG(Buffers, buffers) = Buffers::kFirstShard;
  /// Action to take if copies between GPUs arrive corrupted.
  TORCH_ARG(BadLinks, bad_links) = BadLinks::kStage;
  /// Ranks that share the work of a training run. Each computes its own shards
  /// in a step, and all get the same parameters. DataParallel refuses several
  /// ranks: use DistributedDataParallel.
  TORCH_ARG(ProcessGroup, process_group);
  /// Data that is partitioned over several ranks with a device each, in
  /// train_step() with an SGD, Adam or AdamW.
  TORCH_ARG(ZeroStage, zero) = ZeroStage::kNone;
  /// Makes train_step() divide the state of an SGD, Adam or AdamW between the
  /// accelerators of one process, as ZeRO does between ranks. The optimizer
  /// itself then has no state: call unshare_parameters() before it is saved or
  /// its own step() is called. The next train_step() divides the state again.
  TORCH_ARG(bool, divide_state) = false;
  /// Number of logical shards of a batch. 0: one per device of all ranks. The
  /// bits of a run depend on this number, not on how many devices share the
  /// shards.
  TORCH_ARG(int64_t, shards) = 0;
  /// Number of threads that compute a shard. 0: the cores of all devices /
  /// shards.
  TORCH_ARG(int, intra_op_threads) = 0;
  /// Seed of the random streams, which are keyed by (seed, step, shard).
  /// Default: the seed of LibTorch's default generator (torch::manual_seed).
  TORCH_ARG(std::optional<uint64_t>, seed) = std::nullopt;
  /// Steps before which a replica is compared with the module, and the losses
  /// with each other. The first time costs about two steps, and each later time
  /// less than one.
  TORCH_ARG(Verify, verify) = Verify::kDoubling;
  /// Makes each step on several ranks compare the optimizer's options and, in
  /// turns, parts of the parameters and of the optimizer's state. A difference
  /// is an error. Turn it off for ranks that are meant to differ, as between
  /// the averages of local SGD.
  TORCH_ARG(bool, verify_ranks) = true;
  /// Makes train_step() on several ranks check all parameters and optimizer
  /// state in each step, and not a part of them in turns. Finds each bit that
  /// changes in memory. Takes a few percent of a step.
  TORCH_ARG(bool, verify_memory) = false;
  /// Called when train_step() enters a phase, in the thread that enters it.
  /// Meant for monitoring the progress of a run. An exception ends the step.
  TORCH_ARG(std::function<void(StepPhase)>, on_phase);
  /// Called with the inputs of a shard before each forward, in the thread of
  /// its device. current_device() returns that device.
  TORCH_ARG(std::function<void(const std::vector<c10::IValue>&)>, on_shard);
};

/// Returns the index, over all ranks, of the shard of the batch that this
/// thread works on: in a module's forward(), a loss function or a hook. Returns
/// -1 elsewhere.
int64_t current_shard();

/// Seconds of the last step by phase. Where all devices work at once, the time
/// of the slowest one. Phases follow one after another, so their sum is at most
/// the time of the step.
struct PhaseTimes {
  double scatter_s = 0;
  double replicate_s = 0;
  double forward_s = 0;
  double gather_s = 0;
  double backward_s = 0;
  /// With one rank and an optimizer, included in update_s. With several ranks,
  /// the time of the gradient exchange, including waits.
  double reduce_s = 0;
  double update_s = 0;
};

/// Computes the loss of one shard from the replica's output and the shard's
/// target: a scalar tensor, or a WeightedLoss. Called in the device's thread.
using ShardLoss = std::function<WeightedLoss(const c10::IValue& output,
                                             const c10::IValue& target)>;

/// Reduction of the losses of a batch's shards to the loss of the batch.
enum class LossReduction {
  kMean,  ///< the mean, weighted by each shard's samples or weight
  kSum,   ///< the sum
};

/// Behaviour of train_step() if the shards of a batch have the weight 0 in
/// total.
enum class EmptyBatch {
  kError,  ///< throws ParallelError
  kSkip,   ///< updates nothing
};

/// Called with the output and the target of each shard in an evaluation.
using ShardVisit =
    std::function<void(const c10::IValue& output, const c10::IValue& target)>;

/// Options of one train_step().
struct TrainStepOptions {
  /// Scales the gradient of the batch down to this norm if it is longer, as
  /// torch::nn::utils::clip_grad_norm_ does. 0: never. Only with an optimizer.
  TORCH_ARG(double, clip_grad_norm) = 0;
  /// Multiplies the loss before the backward. The gradient is divided by it
  /// afterwards, so that small gradients do not vanish in float16. If it is not
  /// 1, the gradients are checked: see StepResult::is_finite. Only with an
  /// optimizer.
  TORCH_ARG(double, loss_scale) = 1;
  /// Limit of the loss. A batch with a higher loss updates nothing.
  TORCH_ARG(double, max_loss) = std::numeric_limits<double>::infinity();
  /// With several ranks: number of samples of the batch, over all ranks. -1:
  /// all ranks have the same number.
  TORCH_ARG(int64_t, total_samples) = -1;
  /// Computes each shard's forward and backward twice, and a third time if the
  /// bits differ. Gradients that two computations agree on are used. Detects a
  /// processor that computes wrong results, at twice the cost. A forward that
  /// writes to its inputs writes to copies of them.
  TORCH_ARG(bool, verify_gradients) = false;
  /// With kSum, the loss function returns a sum over a shard's samples, and the
  /// gradient is that of the sum over the batch.
  TORCH_ARG(LossReduction, loss_reduction) = LossReduction::kMean;
  /// For losses with a weight: divisor of the weighted sum of losses. To
  /// accumulate a batch over several calls, pass the weight of the whole batch,
  /// over all calls and ranks, to each of them. 0: the weight of this call.
  TORCH_ARG(double, total_weight) = 0;
  TORCH_ARG(EmptyBatch, empty_batch) = EmptyBatch::kError;
  /// Logs a warning for the wrapper's first step that is not finite. See
  /// StepResult::not_finite.
  TORCH_ARG(bool, warn_not_finite) = true;
};

/// Result of train_step().
struct StepResult {
  /// Loss of the batch: the mean of the shards' losses, weighted by their
  /// samples or by the weights that the loss function returned, or the sum of
  /// the losses (LossReduction).
  double loss = 0;
  int64_t samples = 0;
  /// Sum of the weights that the loss function returned, or the number of
  /// samples if it returned none.
  double weight = 0;
  /// Norm of the gradient before clipping, or negative if it was not computed.
  double gradient_norm = -1;
  /// False if the loss (or the gradient's norm, if it is computed) is NaN or
  /// infinite. Nothing was updated then.
  bool is_finite = true;
  /// Text that says where a NaN or an infinity was found first, if the step is
  /// not finite: "parameter 'fc.weight' (nan in 3 of 5120 elements)". With
  /// several ranks, covers only this rank.
  std::string not_finite{};
  /// Whether the loss is above the allowed maximum. Nothing was updated then.
  bool is_too_high = false;
  /// Whether the weight is 0 (EmptyBatch::kSkip). Nothing was updated then.
  bool is_empty = false;
  /// With verify_gradients: this rank's shards for which one computation gave
  /// wrong gradients, which were not used.
  std::vector<int64_t> repaired_shards;

  bool updates() const { return is_finite && !is_too_high && !is_empty; }
};

}  // namespace lockstep
