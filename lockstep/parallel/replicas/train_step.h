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
#include "lockstep/parallel/replicas/outer_gradients.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/sharded_update.h"
#include "lockstep/parallel/replicas/verified_pass.h"

namespace lockstep {

/// Makes one step: forward, loss and backward of every shard in its device's
/// thread, then reduction and update by all threads at once.
class TrainStep {
 public:
  /// `exchange` is for several ranks. If it is nullptr, only this rank's shards
  /// are used. A step without `exchange` of one of several ranks computes only
  /// that rank's own gradients, and must not have an optimizer.
  TrainStep(ReplicaGroup& group, RankExchange* exchange,
            const TrainStepOptions& options)
      : group_(group),
        exchange_(exchange),
        options_(options),
        update_(group, exchange) {}

  /// Adds the local gradients in .grad, tracked by `local`, to this step's
  /// gradients before the ranks sum them. If `by_samples`, gradients of
  /// backward() are weighted by this rank's number of samples in the batch.
  /// Otherwise all ranks have equal weight.
  TrainStep& with_local_gradients(LocalGradients& local, bool by_samples) {
    if (local.has_any()) local_gradients_ = &local;
    weights_by_samples_ = by_samples;
    return *this;
  }
  /// Sets a factor for the gradients that run() adds to .grad.
  TrainStep& multiply_gradients(double factor) {
    gradient_factor_ = factor;
    return *this;
  }

  /// Runs the step. Without an `optimizer`, adds the gradients to the
  /// original's .grad. With one, gradients that are already in .grad are added
  /// to the step's, and .grad of all parameters is empty afterwards. Hooks on
  /// parameters see the batch's gradient. Inputs that require grad, and leaves
  /// that the loss uses, get their gradients. `inputs` and `target` may be
  /// nested, and are scattered in the same way. With several ranks, each passes
  /// the samples of its own shards.
  StepResult run(const std::vector<c10::IValue>& inputs,
                 const c10::IValue& target, const ShardLoss& loss,
                 optim::Optimizer* optimizer);

  /// Runs the forward of every shard without gradients, and calls `visit` with
  /// its output and target in its device's thread. Inputs and ranks are as in
  /// run(). Returns the number of samples of each shard of all ranks.
  std::vector<int64_t> evaluate(const std::vector<c10::IValue>& inputs,
                                const c10::IValue& target,
                                const ShardVisit& visit);

 private:
  /// The shards of a batch, and the parts of it that belong to this rank.
  struct Shards {
    int64_t batch = 0;               ///< samples of all ranks
    int64_t own = 0;                 ///< samples of this rank
    std::vector<int64_t> samples;    ///< by shard, of all ranks
    std::vector<c10::IValue> parts;  ///< this rank's shards
    /// Returns the number of shards of all ranks.
    int64_t count() const { return static_cast<int64_t>(samples.size()); }
  };
  /// Cuts the batch into shards. `all` is the tuple of the inputs and the
  /// target. `trains` is true in run().
  Shards cut(const c10::IValue& all, bool trains) const;
  /// Input of a step, the same for all of its shards.
  struct StepInput {
    const Shards& shards;
    const DifferentiableInputs& differentiable;
    const std::vector<c10::IValue>& inputs;
    const c10::IValue& target;
    const ShardLoss& loss;
    double loss_scale;          ///< multiplies the loss before its backward
    OverlappedSum* overlapped;  ///< null: gradients are summed afterwards
    bool can_cast;              ///< result of can_use_casts()
  };
  /// Results of the passes of this rank's shards.
  struct Passes {
    StepTotals totals;                              ///< losses and weights
    std::vector<std::vector<PartialSum>> partials;  ///< by worker
    /// By part, without the gradients of the parameters.
    std::vector<ShardPass> parts;
    /// ShardPass::cast_once of the first shard.
    std::vector<bool> cast_once;
    double overlapped_wait_s = 0;
  };
  /// Input of compute_shard().
  struct ShardWork {
    const StepInput& step;
    size_t worker;
    int64_t shard;
    Replica& replica;
    const c10::IValue& part;  // the shard's tuple of inputs and target
    // Sums the gradients during the backward, together with those of `earlier`
    // shards. Null: they are summed after the backward.
    OverlappedSum* sum;
    const std::vector<PartialSum>& earlier;
    bool keeps_output = false;  // the pass keeps the output
    bool is_compared = false;   // the pass has the gradients' checksums
    bool scans_casts = false;   // the pass has cast_once
    // For ModuleComparison, where `replica` is the module itself: what it
    // computes. It does not call the options' callbacks, and does not count
    // towards the step's time.
    std::optional<ModuleComparison::Extent> module_extent{};
  };
  /// Checks that run() makes in this step. See FirstStep.
  struct Checks {
    bool module = false;
    bool loss = false;
    bool any() const { return module || loss; }
  };
  Checks checks_of(const ShardLoss& loss) const;
  /// Checks the losses of this rank's shards and of all ranks, in the thread of
  /// the first shard. Collective.
  void check_loss(const StepInput& step, const std::vector<ShardPass>& parts,
                  FirstStep::Findings& findings) const;
  /// Makes the checks, on which checking_ranks() agree. If one fails, restores
  /// the module's `buffers` and throws ParallelError.
  void make_checks(const Checks& checks, const StepInput& step,
                   const std::vector<ShardPass>& parts,
                   ModuleComparison* comparison, const KeptTensors& buffers);
  /// Computes all shards of this rank, each in its device's thread, waits until
  /// the overlapped sums are made, and makes the checks of the first step.
  Passes compute_shards(const StepInput& step);
  /// Returns the gradients of the tensors outside of the module: the inputs and
  /// other leaves. With an exchange, throws if there are other leaves.
  OuterGradients outer_gradients(const DifferentiableInputs& differentiable,
                                 Passes& passes) const;
  /// Adds the gradients, times `factor`, to the original's .grad.
  void add_to_grad(Reduction& reduction, OuterGradients outer, double factor);
  /// Updates the parameters, and clips and checks gradients if the options say
  /// so. `needs_grad`: by way of .grad, where hooks see them.
  void update(Reduction& reduction, OuterGradients outer, bool needs_grad,
              double factor, const std::vector<size_t>& positions,
              optim::Optimizer& optimizer, StepResult& result);
  /// Returns whether this step can use, or prepare, the group's cast_weights().
  bool can_use_casts(const optim::Optimizer* optimizer,
                     const std::vector<size_t>& positions) const;
  /// Writes the cast weights again if a parameter was changed since the last
  /// step. Collective if ranks share memory.
  void refresh_casts(const optim::Optimizer* optimizer);
  /// Returns, for each of the group's parameters(), whether the graph of `loss`
  /// uses the replica's leaf only by autocast's cast.
  std::vector<bool> are_cast_once(const torch::Tensor& loss,
                                  const Replica& replica) const;
  /// Computes the shard of `comparison` with cast weights, and returns whether
  /// it has the bits of the module. If so, the shards of this step use them.
  bool try_casts(ModuleComparison& comparison, int64_t chunks);
  /// Makes cast weights, or begins to use them, if all ranks can. Collective.
  void end_casts(const StepTotals& totals, const Passes& passes);
  /// Computes forward, loss and backward, in the thread of the replica's
  /// device.
  ShardPass compute_shard(const ShardWork& work) const;
  /// Returns the partial sums of all workers, with the local gradients added.
  std::vector<PartialSum> partials_of_rank(
      std::vector<std::vector<PartialSum>> partials, const Shards& shards,
      double loss_scale);
  Reduction reduce(std::vector<PartialSum> partials, int64_t chunks,
                   StepTotals& totals) const;
  /// Calls the on_phase callback of the options.
  void enter(StepPhase phase) const {
    if (const auto& tell = group_.options().on_phase()) tell(phase);
  }
  bool is_local() const {
    return !exchange_ && group_.options().process_group().size() > 1;
  }
  /// The checks that this step has to make, and the ranks that make them.
  FirstStep& first_step() const {
    return is_local() ? group_.own_first_step() : group_.first_step();
  }
  ProcessGroup checking_ranks() const {
    return is_local() ? ProcessGroup() : group_.options().process_group();
  }

  ReplicaGroup& group_;
  RankExchange* exchange_;
  const TrainStepOptions& options_;
  ShardedUpdate update_;
  LocalGradients* local_gradients_ = nullptr;  // null if there are none
  bool weights_by_samples_ = false;
  double gradient_factor_ = 1;
};

}  // namespace lockstep
