#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/exchange/step_sum.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/step/batch_loss.h"
#include "lockstep/parallel/step/outer_gradients.h"
#include "lockstep/parallel/step/shard.h"
#include "lockstep/parallel/step/sharded_update.h"
#include "lockstep/parallel/step/step_attachment.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

/// Adds gradients to the partial sums of this rank's shards. They must have
/// been computed with a loss that was multiplied by `factor`.
using AddGradients = std::function<void(const StepBatch& batch, double factor,
                                        std::vector<PartialSum>& sums)>;

/// Makes one step: forward, loss and backward of every shard in its device's
/// thread, then reduction and update by all threads at once.
class TrainStep {
 public:
  /// `exchange` is for several ranks. If it is nullptr, only this rank's shards
  /// are used. A step without `exchange` of one of several ranks computes only
  /// that rank's own gradients, and must not have an optimizer. Without an
  /// `optimizer`, gradients are added to the original's .grad.
  TrainStep(ReplicaGroup& group, RankExchange* exchange,
            StepAttachments attachments, const TrainStepOptions& options,
            optim::BlockOptimizer* optimizer);

  /// Makes the step call `add` before the ranks sum the gradients.
  TrainStep& add(AddGradients add) {
    add_gradients_ = std::move(add);
    return *this;
  }
  /// Sets a factor for the gradients that run() adds to the parameters' .grad.
  TrainStep& multiply_gradients(double factor) {
    gradient_factor_ = factor;
    return *this;
  }

  /// Runs the step. With an optimizer, gradients that are already in .grad are
  /// added to the step's, and .grad of all parameters is empty afterwards.
  /// Hooks on parameters see the batch's gradient. Inputs that require grad,
  /// and leaves that the loss uses, get their gradients. `inputs` and `target`
  /// may be nested, and are scattered in the same way. With several ranks, each
  /// passes the samples of its own shards.
  StepResult run(const std::vector<c10::IValue>& inputs,
                 const c10::IValue& target, const ShardLoss& loss);

 private:
  /// The gradients of this rank's shards.
  struct Passes {
    Passes(const StepBatch& batch, size_t workers)
        : partials(workers), parts(batch.parts.size()) {}
    /// Adds the pass of shard `index`, which `worker` has computed. `sum`, if
    /// it is not null, has got its gradients as they came.
    void add(const StepBatch& batch, size_t worker, int64_t index,
             ShardPass pass, StepSum* sum);

    /// By worker, summed along the tree as far as it goes.
    std::vector<std::vector<PartialSum>> partials;
    /// By part, without the gradients of the parameters.
    std::vector<ShardPass> parts;
  };
  /// The gradients of the batch, and what the ranks said about them.
  struct Sums {
    Reduction gradients;
    StepTotals totals;
  };

  /// Cuts the batch, loads the buffers and starts a forward of the replicas.
  StepBatch begin(const std::vector<c10::IValue>& inputs,
                  const c10::IValue& target);
  /// Returns what sums the gradients over the ranks during the backward of this
  /// rank's last shard, or nullptr if they are summed after it.
  StepSum* step_sum(const StepBatch& batch) const;
  /// Computes forward, loss and backward of a shard, in the thread of its
  /// device. `sum`, if it is not null, gets the gradients as they come, and
  /// adds them to those of the `earlier` shards. With
  /// TrainStepOptions::verify_gradients, computes them twice.
  ShardPass compute(Shard& shard, const ShardLoss& loss, StepSum* sum,
                    const std::vector<PartialSum>& earlier) const;
  /// Waits until `overlapped`, if it is not null, has summed the gradients.
  void wait_for_sums(StepSum* overlapped);
  /// Sums the gradients of all ranks.
  Sums reduce(const StepBatch& batch, Passes& passes,
              const OuterGradients& outer);
  /// Returns the partial sums of all workers, with those of add() added.
  std::vector<PartialSum> partials_of_rank(
      std::vector<std::vector<PartialSum>> partials,
      const StepBatch& batch) const;
  Reduction combine(std::vector<PartialSum> partials, const StepBatch& batch,
                    StepTotals& totals) const;
  StepResult result_of(const BatchLoss& mean, const StepBatch& batch,
                       const std::vector<ShardPass>& parts) const;
  /// Without an optimizer, adds the gradients to .grad, as backward() does even
  /// if they are not finite. With one, updates the parameters, unless `result`
  /// says that nothing is updated.
  void apply(Sums& sums, OuterGradients outer, const BatchLoss& mean,
             const StepBatch& batch, StepResult& result);
  /// Adds the gradients, times `factor`, to the original's .grad.
  void add_to_grad(Reduction& reduction, OuterGradients outer, double factor);
  /// Updates the parameters, and clips and checks gradients if the options say
  /// so. `needs_grad`: by way of .grad, where hooks see them.
  void update(Reduction& reduction, OuterGradients outer, bool needs_grad,
              double factor, StepResult& result);
  /// Returns whether this rank steps without the others (no_sync()).
  bool is_local() const {
    return !exchange_ && group_.options().process_group().size() > 1;
  }

  ReplicaGroup& group_;
  StepClock& clock_;
  RankExchange* exchange_;
  StepAttachments attachments_;
  const TrainStepOptions& options_;
  optim::BlockOptimizer* optimizer_;
  ShardedUpdate update_;
  // Index in the group's parameters() of each parameter of the optimizer.
  std::vector<size_t> positions_;
  double loss_scale_;
  AddGradients add_gradients_;
  double gradient_factor_ = 1;
};

}  // namespace lockstep
