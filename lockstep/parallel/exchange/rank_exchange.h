#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/trace.h"
#include "lockstep/comm/world.h"
#include "lockstep/device/device.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/grad_bucket.h"
#include "lockstep/parallel/exchange/zero_stage.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

class OverlappedSum;

/// The loss of a shard, as a step adds it up.
struct ShardLossTotal {
  double loss = 0;  ///< times the factor with which its backward began
  double weight =
      0;  ///< samples, or the weight that the loss function returned
};

/// What the ranks of a world tell each other in a step.
struct StepTotals {
  int64_t samples = 0;  ///< of the whole batch; every rank's must agree
  std::vector<ShardLossTotal> shards;  ///< a rank fills in its own
  /// Whether the step has to go through the parameters' `.grad`: of this rank,
  /// then of any.
  bool needs_grad = false;
};

/// On the lane of what ranks do together.
class AllReduceSpan {
 public:
  AllReduceSpan(int rank, const char* name)
      : lane_(rank, "all-reduce"), span_(name, TraceCategory::kCommunication) {}

 private:
  TraceLane lane_;
  TraceSpan span_;
};

/// Waits until all ranks have come; in the trace it is a wait.
void barrier(const World& world);

/// How the gradients of shards on several ranks come together, and who
/// updates what. All of it is collective.
class RankExchange {
 public:
  virtual ~RankExchange() = default;

  /// At the start of a step. Where ranks can share memory they share the
  /// parameters from the first step on that the engine updates itself
  /// (`is_driven`), and each has its own again from the next step that it does
  /// not. Throws ParallelError if a parameter was changed while it was
  /// shared, or if it is not the same on all ranks when it is to be shared.
  virtual void begin_step(bool is_driven) { static_cast<void>(is_driven); }
  /// Gives this rank parameters of its own.
  virtual void unshare_parameters() {}
  /// Gives every rank rank 0's buffers, as they were at the last end_step(),
  /// but for those that were loaded or written to since.
  virtual void load_buffers() = 0;
  /// Leaves the buffers as they are until the next step: a forward of the
  /// user's own has changed them.
  virtual void forget_buffers() = 0;
  /// Whether ranks have optimizer state, and parameters in the engine's own
  /// updates, once for all of them.
  virtual bool shares_memory() const { return false; }
  /// What sums gradients while the last backward of a step runs: nullptr where
  /// that can't be. `chunks` are the shards that this step has.
  virtual OverlappedSum* overlapped_sum(int64_t chunks) {
    static_cast<void>(chunks);
    return nullptr;
  }
  /// Brings the partial sums of all ranks together, and completes `totals`.
  /// Throws ParallelError if the ranks' numbers of samples differ.
  virtual Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                           StepTotals& totals) = 0;
  /// Of `blocks`, by place, those that this rank reduces and updates. The
  /// tensor of a block is a place in `positions`, where the parameter's place
  /// is.
  virtual std::vector<size_t> own_blocks(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions) const = 0;
  /// After each rank filled in those of its own blocks: all of them. What no
  /// rank filled in is 0.
  virtual void share(std::vector<double>& values) = 0;
  /// The sums that reduce() gave, one for each parameter, whole and in memory
  /// of this rank alone. Collective.
  virtual std::vector<torch::Tensor> whole_sums(
      std::vector<torch::Tensor> sums) = 0;
  /// Waits until all ranks did their blocks; then every rank has the result.
  /// Rank 0's buffers are kept for load_buffers().
  virtual void end_step() = 0;
  /// Zeros for the optimizer, laid out like `parameter`.
  virtual torch::Tensor make_state(const torch::Tensor& parameter) = 0;
  /// A tensor of the optimizer's state with the elements of all ranks: itself,
  /// or a copy where each has a part of it. Collective.
  virtual torch::Tensor whole_state(const torch::Tensor& state) {
    return state;
  }
  /// Of gradients that had to be copied for the other ranks, on no account.
  virtual int64_t copy_bytes() const { return 0; }
};

/// Throws ParallelError if `rank` and `peer` count a different number of
/// samples for one step.
void check_samples(int rank, int64_t samples, int peer, int64_t peer_samples);

/// For the ranks of `world`, whose modules are alike and are made alike: first
/// verified by name, then given rank 0's values. `parameters` are the unique
/// ones of `module`.
///
/// `devices` are this rank's. Where ranks can share memory their optimizer
/// state, gradients and, while the engine updates them, parameters lie in it,
/// once for all ranks, and each rank updates a part. Elsewhere gradients are
/// summed as all-to-all, ordered sum and all-gather, and each rank updates
/// everything, or with `zero` its part. With a `hook`, which replaces the sum,
/// each rank has memory of its own and updates everything, too.
///
/// Throws ParallelError naming the first parameter that differs, and
/// InvalidArgument for a `zero` that does not suit the other arguments.
std::unique_ptr<RankExchange> make_rank_exchange(
    const World& world, const ModuleHandle& module,
    const std::vector<torch::Tensor>& parameters, int64_t shards,
    const std::vector<Device>& devices, ZeroStage zero,
    const CommHook& hook = {});

}  // namespace lockstep
