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

#include "lockstep/comm/world.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/bad_links.h"
#include "lockstep/losses/weighted_loss.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep {

/// When a replica gets its parameters.
enum class Replication {
  /// Replicas stay. CPU slices share the original's storage; a GPU's replica
  /// is copied to when a parameter changed.
  kResident,
  /// Every forward copies all parameters to every replica, gathers the
  /// outputs and reduces the gradients on the output device: nn.DataParallel
  /// as the textbooks draw it. Here to be measured.
  kEveryForward,
};

/// Whose buffers (BatchNorm statistics) survive a forward.
enum class Buffers {
  kFirstShard,  ///< those of shard 0, as in PyTorch
  kMean,        ///< the mean over the shards (floating-point buffers)
};

/// The phases of train_step(), in their order.
enum class StepPhase {
  kForward,    ///< of a shard, in its device's thread
  kBackward,   ///< of a shard, in its device's thread
  kAllReduce,  ///< the gradients of all ranks come together
  kUpdate,
};

/// What DataParallel can be told; `DataParallelOptions().dim(1)`.
struct DataParallelOptions {
  /// Where outputs are gathered. Default: the first device.
  TORCH_ARG(std::optional<Device>, output_device) = std::nullopt;
  /// The batch dimension.
  TORCH_ARG(int64_t, dim) = 0;
  TORCH_ARG(Replication, replication) = Replication::kResident;
  TORCH_ARG(Buffers, buffers) = Buffers::kFirstShard;
  /// Of several GPUs: what is done when copies between them arrive changed.
  TORCH_ARG(BadLinks, bad_links) = BadLinks::kStage;
  /// The ranks that share the work: each makes its steps with its own shards,
  /// and all get the same parameters. Only train_step() works for several.
  TORCH_ARG(World, world);
  /// Of several ranks with a device each, for train_step(): its optimizer's
  /// state is made by make_state(). LibTorch's SGD, Adam and AdamW need not be
  /// told.
  TORCH_ARG(ZeroStage, zero) = ZeroStage::kNone;
  /// Logical shards that a batch is cut into; 0: one per device of all ranks.
  /// The bits of a run depend on this number, not on how many devices share the
  /// shards.
  TORCH_ARG(int64_t, shards) = 0;
  /// Threads a shard computes with; 0: the cores of all devices / shards.
  TORCH_ARG(int, intra_op_threads) = 0;
  /// Of the random streams, keyed by (seed, step, shard). Default: the seed of
  /// LibTorch's default generator (torch::manual_seed).
  TORCH_ARG(std::optional<uint64_t>, seed) = std::nullopt;
  /// The first forward() and the first train_step() compare a replica with the
  /// module itself, and the shards' losses with the loss of all of them
  /// together. Costs one more forward and backward of one shard, once.
  TORCH_ARG(bool, verify_first_step) = true;
  /// Called when train_step() enters a phase, in the thread that enters it, for
  /// who watches the progress of a run. What it throws ends the step.
  TORCH_ARG(std::function<void(StepPhase)>, on_phase);
  /// Called before each forward of a shard with its inputs, in the thread of
  /// its device: current_device() says which that is.
  TORCH_ARG(std::function<void(const std::vector<c10::IValue>&)>, on_shard);
};

/// Seconds of the last step by phase: where all devices work at once, those of
/// the one that took longest. Phases follow one upon the other, so that their
/// sum is at most the time of the step.
struct PhaseTimes {
  double scatter_s = 0;
  double replicate_s = 0;
  double forward_s = 0;
  double gather_s = 0;
  double backward_s = 0;
  /// Of one rank with an optimizer: in update_s. Of several: their gradients'
  /// way to each other, and waiting for them.
  double reduce_s = 0;
  double update_s = 0;
};

/// Computes the loss of one shard from the replica's output and the shard's
/// target: a scalar tensor, or a WeightedLoss. Called in the device's thread.
using ShardLoss = std::function<WeightedLoss(const c10::IValue& output,
                                             const c10::IValue& target)>;

/// Reduction of the losses of a batch's shards to the loss of the batch.
enum class LossReduction {
  kMean,  ///< their mean, weighted by each shard's samples or weight
  kSum,   ///< their sum
};

/// Behaviour of train_step() if the shards of a batch have the weight 0 in
/// total.
enum class EmptyBatch {
  kError,  ///< throws ParallelError
  kSkip,   ///< updates nothing
};

/// Called with the output and the target of a shard that is evaluated.
using ShardVisit =
    std::function<void(const c10::IValue& output, const c10::IValue& target)>;

/// Of one train_step().
struct TrainStepOptions {
  /// Scales the gradient of the batch down to this norm if it is longer, as
  /// torch::nn::utils::clip_grad_norm_ does. 0: never. Only with an optimizer.
  TORCH_ARG(double, clip_grad_norm) = 0;
  /// The loss is multiplied by it before the backward and the gradient divided
  /// by it after, so that small gradients do not vanish in float16. Other than
  /// 1, the gradients are checked: see StepResult::is_finite. Only with an
  /// optimizer.
  TORCH_ARG(double, loss_scale) = 1;
  /// A batch whose loss is above it updates nothing.
  TORCH_ARG(double, max_loss) = std::numeric_limits<double>::infinity();
  /// With several ranks: samples of the batch that all of them pass together.
  /// -1: as many on each rank.
  TORCH_ARG(int64_t, batch) = -1;
  /// Each shard's forward and backward are computed twice, and a third time if
  /// the bits differ: the gradients that two computations agree on are used.
  /// Finds a processor that computes wrong, at twice the cost. A forward that
  /// writes to its inputs writes to copies of them.
  TORCH_ARG(bool, verify_gradients) = false;
  /// kSum: the loss function returns a sum over a shard's samples, and the
  /// gradient is that of the sum over the batch.
  TORCH_ARG(LossReduction, loss_reduction) = LossReduction::kMean;
  /// For losses with a weight: what the weighted sum of losses is divided by.
  /// To accumulate a batch over several calls, pass the weight of the whole
  /// batch, over all calls and ranks, to each of them. 0: the weight of this
  /// call.
  TORCH_ARG(double, total_weight) = 0;
  TORCH_ARG(EmptyBatch, empty_batch) = EmptyBatch::kError;
  /// Reports the wrapper's first step that is not finite in the log. See
  /// StepResult::not_finite.
  TORCH_ARG(bool, warn_not_finite) = true;
};

/// What train_step() returns.
struct StepResult {
  /// Loss of the batch: the mean of the shards' losses, weighted by their
  /// samples or by the weights that the loss function returned; or their sum
  /// (LossReduction).
  double loss = 0;
  int64_t samples = 0;
  /// Sum of the weights that the loss function returned; the number of samples
  /// if it returned none.
  double weight = 0;
  /// Before clipping; negative when it was not asked for.
  double gradient_norm = -1;
  /// False: the loss (or the gradient's norm, where that is computed) is NaN or
  /// infinite, and nothing was updated.
  bool is_finite = true;
  /// If it is not finite: where a NaN or an infinity is seen first, in words.
  /// "parameter 'fc.weight' (nan in 3 of 5120 elements)". With several ranks,
  /// what this rank sees.
  std::string not_finite{};
  /// The loss is above the greatest that was allowed, and nothing was updated.
  bool is_too_high = false;
  /// The weight is 0, and nothing was updated (EmptyBatch::kSkip).
  bool is_empty = false;
  /// With verify_gradients: this rank's shards of which one computation was
  /// wrong. Its gradients were not used.
  std::vector<int64_t> repaired_shards;

  bool updates() const { return is_finite && !is_too_high && !is_empty; }
};

}  // namespace lockstep
