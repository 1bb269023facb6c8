#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/reduction/reduction.h"
#include "lockstep/parallel/step/step_attachment.h"

namespace lockstep {

/// Use of the sums: to be stored in .grad, or only for this step's update.
enum class SumsFor { kGradients, kUpdate };

/// Returns the index in `parameters` of each of an optimizer's parameters.
/// Throws InvalidArgument for one that is not among them.
std::vector<size_t> positions_in(
    const std::vector<torch::Tensor>& parameters,
    const std::vector<torch::Tensor>& optimizer_parameters);

/// Makes the second half of a step: sums the shards' gradients and updates the
/// parameters with them, block by block. It uses the threads of all replicas
/// and, if ranks share memory, those of all ranks. A thread updates a block
/// while the block's sum is still in its cache.
///
/// Gradients are passed and returned as one tensor for each of the group's
/// parameters(), laid out like it, undefined where there is no gradient.
class ShardedUpdate {
 public:
  /// `exchange` is for several ranks. If it is nullptr, only this rank's
  /// replicas are used. `attachments` are called for each block.
  ShardedUpdate(ReplicaGroup& group, RankExchange* exchange,
                StepAttachments attachments = {})
      : group_(group), exchange_(exchange), attachments_(attachments) {}

  /// Returns the index in the group's parameters() of each parameter of the
  /// optimizer. Throws InvalidArgument for one that is not among them.
  std::vector<size_t> positions_in(
      const optim::BlockOptimizer& optimizer) const {
    return lockstep::positions_in(group_.parameters(), optimizer.parameters());
  }

  /// Returns what the ranks have copies of in a step with `optimizer`, which
  /// may be null. `positions` is the result of positions_in(optimizer).
  CommonState::Contents common_state(
      const optim::BlockOptimizer* optimizer,
      const std::vector<size_t>& positions) const;

  /// Returns the sums, in memory of this rank. For an update, only the blocks
  /// that this rank updates may be valid.
  std::vector<torch::Tensor> finish(Reduction& reduction, SumsFor use);
  /// Adds the sums to the parameters' .grad and calls the hooks registered on
  /// them, as a backward of the module itself would.
  void accumulate(std::vector<torch::Tensor> sums);

  /// Returns whether an update of the parameters at `positions` must go through
  /// .grad: a parameter has gradients there or hooks, or the optimizer leaves
  /// out a parameter. Otherwise the sums can be used block by block as they are
  /// made.
  bool needs_grad(const std::vector<size_t>& positions) const;
  /// Takes and returns the .grad of the parameters at `positions`. With several
  /// ranks, throws ParallelError naming the first parameter whose gradients
  /// differ.
  std::vector<torch::Tensor> take_grads(const std::vector<size_t>& positions);

  /// Runs `task` for each block of the group's parameters that belongs to this
  /// rank, with all threads, each in a span called `name`.
  void for_each_parameter_block(
      const char* name, const std::function<void(const optim::Block&)>& task);
  /// Sums and updates block by block. The sums are multiplied by `factor`.
  /// `positions` is the result of positions_in(optimizer).
  void update(Reduction& reduction, const std::vector<size_t>& positions,
              optim::BlockOptimizer& optimizer, double factor);
  struct WholeOptions {
    double clip = 0;      ///< if above 0: limit of the norm of the gradients
    double factor = 1;    ///< factor for the gradients, applied before the norm
    bool checks = false;  ///< checks that they are finite; implied by `clip`
  };
  /// Updates with `gradients`, which have their own memory. If it clips or
  /// checks, writes their norm to `result`. If the norm is not finite, updates
  /// nothing and writes the name of the first parameter with such a gradient to
  /// `result`.
  void update_whole(const std::vector<torch::Tensor>& gradients,
                    const std::vector<size_t>& positions,
                    optim::BlockOptimizer& optimizer,
                    const WholeOptions& options, StepResult& result);
  /// Returns text that names the first of the optimizer's parameters with a
  /// gradient that is not finite, or "" if all are finite. Collective.
  std::string first_not_finite(Reduction& reduction,
                               const std::vector<size_t>& positions,
                               const optim::BlockOptimizer& optimizer);

 private:
  /// Runs `task(index, scratch)` for each of `blocks` that belongs to this
  /// rank, with all threads, each in a span called `name`. The tensor of a
  /// block is an index in `positions`, which has the index of the parameter.
  /// On accelerators, the thread of the device that has the state of an
  /// `optimizer` runs the block. Without an optimizer, the first one does.
  void for_each_block(const char* name, const std::vector<optim::Block>& blocks,
                      const std::vector<size_t>& positions,
                      const std::function<void(size_t, torch::Tensor&)>& task,
                      const optim::BlockOptimizer* optimizer = nullptr);
  /// Returns the index of each of the group's parameters().
  std::vector<size_t> all_positions() const;
  /// Returns the indices in `blocks` of those that each thread runs.
  std::vector<std::vector<size_t>> blocks_of_workers(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions,
      const optim::BlockOptimizer* optimizer) const;
  /// Returns the index of the thread of `device`, or 0 if no replica is there.
  size_t worker_on(const torch::Device& device) const;
  /// Returns whether `grad`, of parameter `p`, shares memory with the .grad of
  /// another parameter.
  bool overlaps_another(size_t p, const torch::Tensor& grad) const;
  /// Multiplies all gradients by `factor` and returns the sum of squares of the
  /// result for each of `blocks`. Collective.
  std::vector<double> multiply_and_measure(
      const std::vector<torch::Tensor>& gradients, double factor,
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions);
  /// Returns text that names the parameter of the first block whose sum of
  /// squares is not finite, or "" if all are finite.
  std::string first_not_finite(const std::vector<double>& squares,
                               const std::vector<optim::Block>& blocks,
                               const std::vector<size_t>& positions) const;

  /// Starts a step of the optimizer, and notes the parameters that it updates.
  void begin_update(optim::BlockOptimizer& optimizer,
                    const std::vector<size_t>& positions,
                    const std::vector<bool>& has_gradient);
  /// Updates block `b` of the optimizer.
  /// `block.tensor` is the index of the parameter in the group's parameters().
  void update_block(optim::BlockOptimizer& optimizer, size_t b,
                    const optim::Block& block, const torch::Tensor& gradient);
  /// Ends an update of all blocks. Throws ParallelError, and aborts the process
  /// group, if memory was changed between two steps.
  void end_update(const optim::BlockOptimizer& optimizer,
                  const std::vector<size_t>& positions);
  ReplicaGroup& group_;
  RankExchange* exchange_;
  StepAttachments attachments_;
  std::vector<bool> is_updated_;  // by parameter of the group
};

/// Throws ParallelError: parameter `p` `what`. If there is an `exchange`, only
/// this rank knows, so it aborts the process group.
[[noreturn]] void refuse_changed_memory(const ReplicaGroup& group,
                                        const RankExchange* exchange, size_t p,
                                        const char* what, const char* fix);

}  // namespace lockstep
