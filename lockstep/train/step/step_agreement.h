#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/step/shard_metrics.h"

namespace lockstep::training {

struct StepOutcome {
  Metrics metrics;  ///< means over the batch, with the "loss"
  int64_t samples = 0;
  /// False if the loss or the norm of the gradient is not finite. Nothing was
  /// updated then.
  bool is_finite = true;
  /// Nothing was updated, and the run continues, for one of three reasons. In
  /// float16 a gradient overflowed, and the loss scale is smaller from now on.
  /// Or the loss is a spike. Or the batch is empty. is_finite is true.
  bool is_skipped = false;
  bool is_spike = false;
  /// The losses of the batch have the weight 0 in total (EmptyBatch::kSkip).
  bool is_empty = false;
  int stop_signal = 0;  ///< the signal for which some rank wants to stop
  /// This rank's own values, as in StepResult.
  std::vector<int64_t> repaired_shards;
  std::string not_finite;

  double loss() const { return metrics.at("loss"); }
};

/// Stop signal: the ranks are to wait for others. It is never sent as a signal:
/// it is the first number that no signal has (the last real-time signal has
/// NSIG - 1).
inline constexpr int kRegroupSignal = NSIG;
/// Stop signal, also never sent: a callback wants the run to end.
inline constexpr int kEndSignal = NSIG + 1;

/// Tells all ranks the metrics of a step, and whether one of them wants to
/// stop. Takes one message per step.
class Agreement {
 public:
  /// `is_local`: each rank makes its own steps, and `shards` counts the shards
  /// of one rank. `reduction` is the reduction of the losses.
  Agreement(const ProcessGroup& world, int64_t shards, bool is_local,
            LossReduction reduction);

  /// Returns the metrics of the shards of the next step. May be called from any
  /// thread.
  ShardMetrics& metrics() { return metrics_; }

  /// Returns the outcome of a step of all ranks. Collective.
  StepOutcome after_step(const StepResult& result, int stop_signal);
  /// Returns the outcome of a step that this rank made by itself, with a batch
  /// of `samples` over all ranks. `is_common`: the ranks meet after this step,
  /// which is collective, and the outcome covers all of them. Otherwise it
  /// covers this rank, and no rank stops.
  StepOutcome after_local_step(const StepResult& result, int64_t samples,
                               int stop_signal, bool is_common);

 private:
  ProcessGroup world_;
  LossReduction reduction_;
  ShardMetrics metrics_;
  std::optional<ShardMetrics> rank_metrics_;  // sums of local steps, by rank
};

}  // namespace lockstep::training
