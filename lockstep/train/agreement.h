#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/shard_metrics.h"

namespace lockstep::train {

struct StepOutcome {
  Metrics metrics;  ///< means over the batch, with the "loss"
  int64_t samples = 0;
  /// False: the loss or the gradient's norm is not, and nothing was updated.
  bool is_finite = true;
  /// Nothing was updated, and the run goes on: in float16 a gradient
  /// overflowed, and the loss is scaled by less from now on; or the loss is a
  /// spike; or the batch is empty. is_finite is true.
  bool is_skipped = false;
  bool is_spike = false;
  /// The losses of the batch have the weight 0 in total (EmptyBatch::kSkip).
  bool is_empty = false;
  int stop_signal = 0;  ///< some rank wants to stop, for this
  /// This rank's own, as StepResult has them.
  std::vector<int64_t> repaired_shards;
  std::string not_finite;

  double loss() const { return metrics.at("loss"); }
};

/// As a stop signal: the ranks are to wait for others. Never sent as one: it is
/// the first number that no signal has (the last real-time signal has NSIG -
/// 1).
inline constexpr int kRegroupSignal = NSIG;
/// Likewise: a callback wants the run to end.
inline constexpr int kEndSignal = NSIG + 1;

/// What all ranks know after a step: its metrics, and whether one of them wants
/// to stop. One message each time.
class Agreement {
 public:
  /// `is_local`: each rank makes its own steps, and `shards` are those of one
  /// rank. `reduction` is the one of the losses.
  Agreement(const World& world, int64_t shards, bool is_local,
            LossReduction reduction);

  /// The metrics of the shards of the next step. May be called from any thread.
  ShardMetrics& metrics() { return metrics_; }

  /// After a step of all ranks. Collective.
  StepOutcome of_step(const StepResult& result, int stop_signal);
  /// After a step of this rank's own, of a batch of `samples` over all ranks.
  /// `is_common`: they meet after it, which is collective, and the outcome is
  /// that of all. Else it is this rank's, and nobody stops.
  StepOutcome of_local_step(const StepResult& result, int64_t samples,
                            int stop_signal, bool is_common);

 private:
  World world_;
  LossReduction reduction_;
  ShardMetrics metrics_;
  std::optional<ShardMetrics> of_ranks_;  // of local steps: by rank
};

}  // namespace lockstep::train
