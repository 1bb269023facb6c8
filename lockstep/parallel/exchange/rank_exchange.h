#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/trace.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/common_state.h"
#include "lockstep/parallel/exchange/grad_bucket.h"
#include "lockstep/parallel/exchange/zero_stage.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

class StepSum;

/// Sums of the loss of a shard in a step.
struct ShardLossTotal {
  double loss = 0;    ///< times the factor with which its backward began
  double weight = 0;  ///< samples, or the loss function's weight
};

/// Values that the ranks exchange in a step.
struct StepTotals {
  int64_t samples = 0;  ///< of the whole batch; must be equal on all ranks
  std::vector<ShardLossTotal> shards;  ///< each rank fills in its own shards
  /// Whether the step has to go through the parameters' `.grad`: at first on
  /// this rank, after reduce() on any rank.
  bool needs_grad = false;
  /// Digest of what must be equal on all ranks, of this rank before the update.
  CommonState::Digest state{};
  /// After reduce(), whether the ranks' digests differ.
  bool has_other_state = false;
};

/// The report of a rank on its part of a step, which the other ranks need
/// before they use its gradients. Its memory, which has the same size on all
/// ranks, is
///
///   Header
///   ShardLossTotal losses[shards]
///   ShardRange ranges[partials]
///   int64_t places[partials][parameters]
///   int8_t types[partials][parameters]
///
/// with each part at a multiple of 64 bytes. SharedExchange has it in memory
/// that the ranks share, and MessageExchange sends it.
class StepReport {
 public:
  struct Shape {
    size_t shards = 0;
    size_t partials = 0;  ///< at most, of one rank
    size_t parameters = 0;
  };
  struct Header {
    int64_t samples;     ///< of the whole batch
    int64_t partials;    ///< number of the rank's partial sums
    int64_t needs_grad;  ///< StepTotals::needs_grad, as 0 or 1
    /// 1 + index of a parameter whose gradient came several times in the
    /// backward (GradientSyncState::repeated), or 0.
    int64_t repeated;
    /// 1 + index of the first parameter that the rank wants to be shared again
    /// (SharedExchange::begin_step()). 0: this is the report of a step.
    int64_t wants_to_share;
    CommonState::Digest state;
  };
  /// Place of a gradient that does not exist.
  static constexpr int64_t kNoGradient = -1;

  static size_t bytes(const Shape& shape);
  /// The report in `memory`, which must outlive this object.
  StepReport(std::byte* memory, const Shape& shape);

  Header& header() const { return *header_; }
  /// Shards of each partial sum.
  std::span<ShardRange> ranges() const { return ranges_; }
  /// Places of the gradients of a partial sum: an offset in the rank's memory
  /// if ranks share memory, and 0 otherwise.
  std::span<int64_t> places(size_t partial) const {
    return places_.subspan(partial * parameters_, parameters_);
  }
  /// Types of those gradients, as at::ScalarType. Only valid if ranks share
  /// memory.
  std::span<int8_t> types(size_t partial) const {
    return types_.subspan(partial * parameters_, parameters_);
  }

  /// Writes everything but the places and the types.
  void write(const std::vector<PartialSum>& own_partials,
             const StepTotals& totals) const;
  /// Adds the report, of rank `peer`, to the totals of rank `rank`. Throws
  /// ParallelError if the two count a different number of samples.
  void add_to(StepTotals& totals, int rank, int peer) const;

 private:
  size_t parameters_;
  Header* header_;
  /// Losses of the shards of the batch. Only those of the rank's own shards are
  /// valid.
  std::span<ShardLossTotal> losses_;
  std::span<ShardRange> ranges_;
  std::span<int64_t> places_;
  std::span<int8_t> types_;
};

/// A trace span on the lane of collective operations.
class AllReduceSpan {
 public:
  AllReduceSpan(int rank, const char* name)
      : lane_(rank, "all-reduce"), span_(name, TraceCategory::kCommunication) {}

 private:
  TraceLane lane_;
  TraceSpan span_;
};

/// Waits until all ranks have arrived. The trace shows it as a wait.
void barrier(const ProcessGroup& world);

/// Combines the gradients of shards on several ranks, and determines which rank
/// updates which blocks. All of its functions are collective.
class RankExchange {
 public:
  virtual ~RankExchange() = default;

  /// Returns the state that the ranks compare in each step
  /// (StepTotals::state).
  CommonState& common_state() { return common_state_; }

  /// Starts a step. Ranks that can share memory share the parameters from the
  /// first step on in which the engine makes the update (`is_driven`). Each
  /// rank gets its own copy again at the next step in which it does not.
  /// Returns whether parameters became shared in this call, on all ranks alike.
  /// Throws ParallelError if a parameter was changed while it was shared, or if
  /// it differs between the ranks when it is about to be shared.
  virtual bool begin_step(bool /*is_driven*/) { return false; }
  /// Waits until all ranks are in a step, after begin_step(). Throws
  /// ParallelError if a rank wants to share its parameters instead. Must be
  /// called before other collectives that come before reduce(), which detects
  /// the same.
  virtual void meet() {}
  /// Gives this rank its own copy of the parameters. Throws ParallelError if a
  /// parameter was changed while it was shared.
  virtual void unshare_parameters() {}
  /// Gives every rank rank 0's buffers, as they were at the last end_step(),
  /// except buffers that were loaded or written to since.
  virtual void load_buffers() {}
  /// Leaves the buffers unchanged until the next step, because a forward of the
  /// user has changed them.
  virtual void forget_buffers() {}
  /// Returns whether the ranks share one copy of the optimizer state, and of
  /// the parameters during the engine's own updates.
  virtual bool shares_memory() const { return false; }
  /// Returns the object that sums gradients during the last backward of a step,
  /// or nullptr if that is not possible. `chunks` is the number of shards in
  /// this step.
  virtual StepSum* step_sum(int64_t /*chunks*/) { return nullptr; }
  /// Combines the partial sums of all ranks, and completes `totals`. Throws
  /// ParallelError if the ranks' numbers of samples differ.
  virtual Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                           StepTotals& totals) = 0;
  /// Returns whether only one rank updates each block, so that no other rank
  /// has a copy of the optimizer's state.
  virtual bool divides_update() const = 0;
  /// Returns the indices in `blocks` of the blocks that this rank reduces and
  /// updates. The tensor of a block is an index in `positions`, which gives the
  /// index of the parameter.
  virtual std::vector<size_t> own_blocks(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions) const = 0;
  /// Gives every rank all values, after each rank filled in those of its own
  /// blocks. Values that no rank filled in are 0.
  virtual void share(std::vector<double>& values) = 0;
  /// Returns copies of the sums that reduce() gave, one for each parameter,
  /// complete and in this rank's own memory. Collective.
  virtual std::vector<torch::Tensor> whole_sums(
      std::vector<torch::Tensor> sums) = 0;
  /// Waits until all ranks have updated their blocks. Then every rank has the
  /// result. Rank 0's buffers are kept for load_buffers().
  virtual void end_step() = 0;
  /// Returns zeros for the optimizer, laid out like `parameter`.
  virtual torch::Tensor make_state(const torch::Tensor& parameter) = 0;
  /// Returns an optimizer's state tensor with the elements of all ranks:
  /// `state` itself, or a copy if each rank has a part of it. Collective.
  virtual torch::Tensor whole_state(const torch::Tensor& state) {
    return state;
  }
  /// Bytes of gradients that had to be copied for the other ranks. Not charged
  /// to any device.
  virtual int64_t copy_bytes() const { return 0; }

 protected:
  /// `names` are those of the parameters.
  explicit RankExchange(std::vector<std::string> names)
      : common_state_(std::move(names)) {}

 private:
  CommonState common_state_;
};

/// Returns the name of each of `parameters` in `module`, the first if it has
/// several.
std::vector<std::string> names_of(const std::vector<torch::Tensor>& parameters,
                                  const ModuleHandle& module);

/// Makes the exchange for the ranks of `world`. Verifies by name that the
/// modules of all ranks are alike, then gives them rank 0's values.
/// `parameters` are the unique parameters of `module`.
///
/// `devices` are those of this rank. Ranks that can share memory keep one
/// shared copy of the optimizer state, of the gradients and, while the engine
/// updates them, of the parameters. Each rank then updates a part. Otherwise
/// gradients are sent as messages (MessageExchange), and each rank updates
/// everything, or its own part with `zero`. With a `hook`, which replaces the
/// sum, each rank also has its own memory and updates everything.
///
/// Throws ParallelError naming the first parameter that differs, and
/// InvalidArgument for a `zero` that does not fit the other arguments.
std::unique_ptr<RankExchange> make_rank_exchange(
    const ProcessGroup& world, const ModuleHandle& module,
    const std::vector<torch::Tensor>& parameters, int64_t shards,
    const std::vector<Device>& devices, ZeroStage zero,
    const CommHook& hook = {});

}  // namespace lockstep
