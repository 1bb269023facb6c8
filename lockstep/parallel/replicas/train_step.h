#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/reduction/local_gradients.h"
#include "lockstep/parallel/replicas/differentiable_inputs.h"
#include "lockstep/parallel/replicas/module_comparison.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/sharded_update.h"
#include "lockstep/parallel/replicas/verified_pass.h"

namespace lockstep {

/// One step: forward, loss and backward of every shard in its device's thread,
/// then reduction and update by all threads at once.
class TrainStep {
 public:
  /// `exchange`: of several ranks; nullptr: this rank's shards alone. A step of
  /// one rank of several without `exchange` is for that rank's own gradients:
  /// it has no optimizer.
  TrainStep(ReplicaGroup& group, RankExchange* exchange,
            const TrainStepOptions& options)
      : group_(group),
        exchange_(exchange),
        options_(options),
        update_(group, exchange) {}

  /// Adds what `local` has in .grad to this step's gradients, before the ranks
  /// sum those. `by_samples`: the gradients of backward() count as this rank's
  /// samples of the batch do; otherwise all ranks count alike.
  TrainStep& with_local_gradients(LocalGradients& local, bool by_samples) {
    if (local.has_any()) local_gradients_ = &local;
    weights_by_samples_ = by_samples;
    return *this;
  }
  /// Multiplies the gradients that run() adds to .grad.
  TrainStep& multiply_gradients(double factor) {
    gradient_factor_ = factor;
    return *this;
  }

  /// Without an `optimizer` the gradients are added to the original's .grad.
  /// With one, gradients that are there already are added to the step's, and
  /// .grad of all parameters is empty afterwards. Hooks on parameters see the
  /// batch's gradient; inputs that require grad, and leaves that the loss uses,
  /// get theirs. `inputs` and `target` may be nested; they are scattered alike.
  /// With several ranks, each passes the samples of its own shards.
  StepResult run(const std::vector<c10::IValue>& inputs,
                 const c10::IValue& target, const ShardLoss& loss,
                 optim::Optimizer* optimizer);

  /// Forward of every shard without gradients, and `visit` with its output and
  /// target, in its device's thread. Inputs and ranks as in run(). Returns the
  /// number of samples of each shard of all ranks.
  std::vector<int64_t> evaluate(const std::vector<c10::IValue>& inputs,
                                const c10::IValue& target,
                                const ShardVisit& visit);

 private:
  /// A batch's shards: the samples of all, and the parts of this rank's own.
  struct Shards {
    int64_t batch = 0;
    int64_t own = 0;  ///< samples of this rank
    std::vector<int64_t> samples;
    std::vector<c10::IValue> parts;
  };
  /// `all` is the tuple of the inputs and the target. `trains`: of run().
  Shards cut(const c10::IValue& all, bool trains) const;
  /// The module that computes a shard.
  enum class Runs {
    kReplica,
    // For ModuleComparison: nothing of it is told to the options' callbacks or
    // counted as the step's time.
    kModule,
    kModuleForward,  // without the loss and the backward
  };
  /// What a shard's pass is made from.
  struct ShardWork {
    size_t worker;
    int64_t shard;
    Replica& replica;
    const c10::IValue& part;  // the shard's tuple of inputs and target
    const DifferentiableInputs& differentiable;
    const ShardLoss& loss;
    int64_t samples;    // of the shard
    int64_t batch;      // samples of the batch
    double loss_scale;  // multiplies the loss before its backward
    // Sums the gradients while the backward runs, with those of `earlier`
    // shards; null: that comes after it.
    OverlappedSum* sum;
    const std::vector<PartialSum>& earlier;
    bool keeps_output = false;  // in the pass
    bool is_compared = false;   // the pass has the gradients' checksums
    Runs runs = Runs::kReplica;
    bool is_module() const { return runs != Runs::kReplica; }
  };
  /// The checks that run() makes in this step. See FirstStep.
  struct Checks {
    bool module = false;
    bool loss = false;
    bool any() const { return module || loss; }
  };
  Checks checks_of(const ShardLoss& loss) const;
  /// Checks the losses of this rank's shards and of all ranks, in the thread of
  /// the first shard. Collective.
  void check_loss(const ShardLoss& loss, const c10::IValue& target,
                  const Shards& shards, const std::vector<ShardPass>& computed,
                  FirstStep::Findings& findings) const;
  /// Makes the checks, which checking_ranks() agree on. Throws ParallelError,
  /// after the module got its `buffers` back.
  void make_checks(const Checks& checks, const ShardLoss& loss,
                   const c10::IValue& target, const Shards& shards,
                   const std::vector<ShardPass>& computed,
                   ModuleComparison* comparison, const KeptTensors& buffers);
  /// Forward, loss and backward, in the thread of the replica's device.
  ShardPass compute_shard(const ShardWork& work) const;
  /// Tells `sum` of the gradients in the order in which they came. It may take
  /// them.
  void send(ShardPass& pass, OverlappedSum& sum) const;
  /// The partial sums of all workers, with the local gradients in them.
  std::vector<PartialSum> partials_of_rank(
      std::vector<std::vector<PartialSum>> partials, const Shards& shards,
      double loss_scale);
  Reduction reduce(std::vector<PartialSum> partials, int64_t chunks,
                   StepTotals& totals) const;
  /// Tells the observer of the options.
  void enter(StepPhase phase) const {
    if (const auto& tell = group_.options().on_phase()) tell(phase);
  }
  bool is_local() const {
    return !exchange_ && group_.options().world().size() > 1;
  }
  /// The checks that this step has to make, and the ranks that make them.
  FirstStep& first_step() const {
    return is_local() ? group_.own_first_step() : group_.first_step();
  }
  World checking_ranks() const {
    return is_local() ? World() : group_.options().world();
  }

  ReplicaGroup& group_;
  RankExchange* exchange_;
  const TrainStepOptions& options_;
  ShardedUpdate update_;
  LocalGradients* local_gradients_ = nullptr;  // null if it is empty
  bool weights_by_samples_ = false;
  double gradient_factor_ = 1;
};

}  // namespace lockstep
