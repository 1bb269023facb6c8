#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/reduction/reduction.h"
#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

/// What sums are used for: to become .grad, where they stay, or for this step's
/// update alone.
enum class SumsFor { kGradients, kUpdate };

/// The second half of a step: sums the shards' gradients and updates the
/// parameters with them, block by block, with the threads of all replicas and,
/// where ranks share memory, with those of all ranks. A thread updates a block
/// while the block's sum is still in its cache.
///
/// Tensors come and go as one for each of the group's parameters(), laid out
/// like it, undefined where there is no gradient.
class ShardedUpdate {
 public:
  /// `exchange`: of several ranks; nullptr: this rank's replicas alone.
  ShardedUpdate(ReplicaGroup& group, RankExchange* exchange)
      : group_(group), exchange_(exchange) {}

  /// For each parameter of the optimizer its place in the group's parameters().
  /// Throws InvalidArgument for one that is not among them.
  std::vector<size_t> positions_in(const optim::Optimizer& optimizer) const;

  /// The sums, in memory of this rank. For an update those of the blocks that
  /// this rank updates may be all that is there.
  std::vector<torch::Tensor> finish(Reduction& reduction, SumsFor use);
  /// Adds the sums to the parameters' .grad and calls the hooks that are
  /// registered on them, as a backward of the module itself would.
  void accumulate(std::vector<torch::Tensor> sums);

  /// Whether an update of the parameters at `positions` must go through .grad:
  /// a parameter has gradients there or hooks, or the optimizer leaves out a
  /// parameter. Otherwise the sums can be used block by block as they are made.
  bool needs_grad(const std::vector<size_t>& positions) const;
  /// What is in .grad of the parameters at `positions`, which is empty after
  /// that. Of several ranks, throws ParallelError naming the first parameter
  /// whose gradients differ.
  std::vector<torch::Tensor> take_grads(const std::vector<size_t>& positions);

  /// Sums and updates block by block. The sums are multiplied by `factor`.
  /// `positions` are positions_in(optimizer).
  void update(Reduction& reduction, const std::vector<size_t>& positions,
              optim::Optimizer& optimizer, double factor);
  struct WholeOptions {
    double clip = 0;      ///< above 0: limits the norm of the gradients
    double factor = 1;    ///< multiplies the gradients, before their norm
    bool checks = false;  ///< whether they are finite; `clip` implies it
  };
  /// Updates with `gradients`, in memory of their own. If it clips or checks,
  /// `result` gets their norm; if that is not finite, nothing is updated, and
  /// `result` gets the name of the first parameter with such a gradient.
  void update_whole(const std::vector<torch::Tensor>& gradients,
                    const std::vector<size_t>& positions,
                    optim::Optimizer& optimizer, const WholeOptions& options,
                    StepResult& result);
  /// Returns the first of the optimizer's parameters with a gradient that is
  /// not finite, in words, or "" if all are finite. Collective.
  std::string first_not_finite(Reduction& reduction,
                               const std::vector<size_t>& positions,
                               const optim::Optimizer& optimizer);

 private:
  /// Runs `task(place, scratch)` with all threads, each in a span called
  /// `name`, for those of `blocks`, by place, that are this rank's. Their
  /// tensors are places in `positions`, which has the parameters' places.
  void for_each_block(const char* name, const std::vector<optim::Block>& blocks,
                      const std::vector<size_t>& positions,
                      const std::function<void(size_t, torch::Tensor&)>& task);
  /// Whether the memory of `grad`, of parameter `p`, is another's .grad, too.
  bool overlaps_another(size_t p, const torch::Tensor& grad) const;
  /// Multiplies all gradients by `factor` and returns for each of `blocks` the
  /// sum of the squares of the result. Collective.
  std::vector<double> multiply_and_measure(
      const std::vector<torch::Tensor>& gradients, double factor,
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions);
  /// Returns the parameter of the first block whose sum of squares is not
  /// finite, in words, or "" if all are finite.
  std::string first_not_finite(const std::vector<double>& squares,
                               const std::vector<optim::Block>& blocks,
                               const std::vector<size_t>& positions) const;

  ReplicaGroup& group_;
  RankExchange* exchange_;
};

}  // namespace lockstep
