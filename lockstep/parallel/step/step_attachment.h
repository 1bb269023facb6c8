#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/block_optimizer.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

class ShardedUpdate;

/// A step that is about to be made.
struct StepContext {
  ReplicaGroup& group;
  /// The ranks that make the step together. One rank under no_sync().
  ProcessGroup ranks;
  RankExchange* exchange;  ///< null if this rank steps alone
  ShardedUpdate& update;
  const StepBatch& batch;
  const ShardLoss& loss;
  const TrainStepOptions& options;
  optim::BlockOptimizer* optimizer;  ///< null: the step adds to .grad
  /// Returns whether the parameters' gradients are only for the update of this
  /// step: nobody sees them in .grad, adds to them, or computes them twice.
  /// Looks at all parameters.
  std::function<bool()> updates_in_blocks;
};

/// A forward of a user's loop that is about to be made.
struct ForwardContext {
  ReplicaGroup& group;
  const StepBatch& batch;
  ReplicaGroup::RandomStream stream;
};

/// Results of the checks of steps for a run's report: "passed",
/// "pending", "impossible" or "off", and why a check is impossible.
struct StepCheckReport {
  std::string module = "off";  ///< a replica compared with the module
  std::string loss = "off";    ///< the shards' losses compared with the batch's
  std::string reason;
};

/// A feature that hangs on train_step() from outside. The engine has a list of
/// them. The step calls them, and knows none of them.
class StepAttachment {
 public:
  StepAttachment() = default;
  StepAttachment(const StepAttachment&) = delete;
  StepAttachment& operator=(const StepAttachment&) = delete;
  virtual ~StepAttachment() = default;

  /// Called before each step, when the replicas can be used. Leaves the module,
  /// its buffers and gradients, the batch and the random numbers as they were.
  /// Collective over the ranks of the step, and `step` outlives the step. If it
  /// throws, there is no step.
  virtual void before_step(const StepContext& step) = 0;
  /// Same, before a forward of a user's loop with the replicas of this rank.
  virtual void before_forward(const ForwardContext& /*forward*/) {}
  /// Called before and after the update of a block of parameter `p`, in one of
  /// the threads that update.
  virtual void before_block(size_t /*p*/, const optim::Block& /*block*/) {}
  virtual void after_block(size_t /*p*/, const optim::Block& /*block*/) {}
  /// Called after the update of all blocks. `is_updated` has the parameters
  /// with a gradient.
  virtual void after_update(const std::vector<bool>& /*is_updated*/) {}
  /// Called when the parameters were written to by someone else than the step.
  virtual void on_written() {}
  /// Called when the parameters are others, or lie in other memory.
  virtual void on_rebuild() {}
  /// Makes the next step prove what it computes, if the feature does so now and
  /// then.
  virtual void verify_next_step() {}
  /// Fills in what the feature has found.
  virtual void describe(StepCheckReport& /*report*/) const {}
};

using StepAttachments = std::span<const std::unique_ptr<StepAttachment>>;

}  // namespace lockstep
