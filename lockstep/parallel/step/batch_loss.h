#pragma once

#include <cstdint>

#include "lockstep/losses/weighted_loss.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/group/data_parallel_options.h"

namespace lockstep {

// A step does not know the weight W of the whole batch until the loss of the
// last shard on the last rank is computed. So the backward of shard s begins
// with w_s / samples of the batch, and the summed gradients are multiplied by
// samples of the batch / W. No multiplication is needed if the weight of each
// loss is its number of samples.

/// Checks the result of a loss function and returns its weight, or `samples` if
/// it states none. Waits for the device if the weight is on a GPU. Throws
/// ParallelError (bad-loss).
double checked_weight(const WeightedLoss& loss, int64_t samples);

/// Returns the gradient with which the backward of a shard's loss begins. 0:
/// the shard does not contribute to the batch's loss, and its own loss may be
/// NaN.
double loss_seed(double weight, int64_t batch, LossReduction reduction);

/// Loss of a batch, computed from the losses of its shards.
struct BatchLoss {
  double loss = 0;
  double weight = 0;
  /// Factor for the summed gradients.
  double factor = 1;
  bool is_empty = false;  ///< whether the weight is 0
};

/// Returns the loss of a batch. `totals` are those of all shards. If
/// `is_partial`, they are only those of this rank's shards, so the weight of
/// the batch is not known. The losses must then state no weight, or `options`
/// must have the total.
BatchLoss batch_loss(const StepTotals& totals, const TrainStepOptions& options,
                     bool is_partial);

/// Throws InvalidArgument unless `options` are valid for reducing a loss.
void check_reduction(const TrainStepOptions& options);

/// Throws InvalidArgument unless `options` have the total weight, which a step
/// under no_sync(), or the step after it, can't determine.
void check_has_total_weight(const TrainStepOptions& options);

/// Throws ParallelError if the weight of a step's losses is 0, or more than the
/// total in `options`.
void check_batch_weight(const BatchLoss& batch,
                        const TrainStepOptions& options);

}  // namespace lockstep
