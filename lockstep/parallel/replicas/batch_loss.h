#pragma once

#include <cstdint>

#include "lockstep/losses/weighted_loss.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"

namespace lockstep {

// A step does not know the weight W of the whole batch until the loss of the
// last shard on the last rank was computed. So the backward of shard s begins
// with w_s / samples of the batch, and the summed gradients are multiplied by
// samples of the batch / W. Losses whose weights are their samples need no
// multiplication.

/// Checks what a loss function returned and gives its weight: `samples` if it
/// states none. Waits for the device if the weight is on a GPU. Throws
/// ParallelError (bad-loss).
double checked_weight(const WeightedLoss& loss, int64_t samples);

/// Returns what the backward of a shard's loss begins with. 0: the shard has no
/// part in the batch's loss, and its own loss may be NaN.
double loss_seed(double weight, int64_t batch, LossReduction reduction);

/// The loss of a batch, from the losses of its shards.
struct BatchLoss {
  double loss = 0;
  double weight = 0;
  /// Multiplies the summed gradients.
  double factor = 1;
  bool is_empty = false;  ///< The weight is 0.
};

/// `totals` are those of all shards. `is_partial`: of this rank's shards only,
/// so that the weight of the batch is not known; the losses then state no
/// weight, or `options` have the total.
BatchLoss batch_loss(const StepTotals& totals, const TrainStepOptions& options,
                     bool is_partial);

/// Throws InvalidArgument unless `options` are ones that a loss can be reduced
/// with.
void check_reduction(const TrainStepOptions& options);

/// Throws InvalidArgument unless `options` have the total weight, which a step
/// under no_sync(), or after it, can't find out.
void check_has_total_weight(const TrainStepOptions& options);

/// Throws ParallelError if the weight of a step's losses is 0, or more than the
/// total that `options` state.
void check_batch_weight(const BatchLoss& batch,
                        const TrainStepOptions& options);

}  // namespace lockstep
