#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/exchange/gradient_sync.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

/// When the gradients of a train_step() are sent.
///
/// A gradient that was sent can't be taken back, and a backward within the
/// backward (checkpointing) may add to a gradient that came before. Only a
/// backward shows whether it does. So the first step counts the gradients and
/// sends them after its backward. If each came once on all ranks, later steps
/// send each one as it arrives; otherwise they send all after the backward.
enum class SendingSchedule {
  kNotKnown,  ///< this is the first step
  kAsTheyArrive,
  kAfterBackward,
};

/// Sums the gradients of a train_step() over ranks, if possible while its
/// backward still computes other gradients (GradientSync).
///
/// Every rank first sums its own shards. Then tree_all_reduce() sums along the
/// tree of the ranks. Together this is the tree of all shards if the tree of
/// the ranks is the upper part of it, which can_sum() checks.
///
/// A rank without a gradient sends -0.0, which changes no bit of a sum, not
/// even the sign of a zero. Therefore a small batch needs no special handling:
/// the tree over the first n shards is the tree over all shards, with -0.0 in
/// the others.
///
/// A large gradient is taken from autograd and summed in its own memory. A
/// small one is summed in a bucket. Each gradient is thus held only once.
class StepSum {
 public:
  /// Limit of the bytes of large gradients still to be sent, with
  /// Options::holds_few.
  static constexpr int64_t kMaxBytesToSend = 4 << 20;

  /// Sums the gradient of the large parameter `p` over the ranks. `elements`
  /// are its elements, 1-d, in the order of its memory. Returns a tensor laid
  /// out like the parameter that has the sum, or an undefined one if the sum is
  /// in `elements`. Called in the thread that sums.
  using LargeSum =
      std::function<torch::Tensor(size_t p, const torch::Tensor& elements)>;
  struct Options {
    CommHook hook = {};       ///< replaces all sums, if there is one
    LargeSum large_sum = {};  ///< replaces tree_all_reduce(), if there is one
    /// A rank must not hold all gradients at once. They are sent as they arrive
    /// from the first step on, and the backward waits while large ones of more
    /// than kMaxBytesToSend are still to be sent.
    bool holds_few = false;
  };

  /// Returns whether the sums have the bits of the tree over `shards` shards.
  /// This requires that the shards of the ranks below each node of the tree
  /// over `ranks` ranks are a node of that tree. They are if each rank has 1,
  /// 2, 4, ... shards, and, for example, for 4 shards on 3 ranks, but not for 3
  /// shards on 2 ranks.
  static bool can_sum(int64_t shards, int64_t ranks);

  /// `names` are those of `parameters`. Collective.
  StepSum(const ProcessGroup& world,
          const std::vector<torch::Tensor>& parameters,
          std::vector<std::string> names, Options options);
  ~StepSum();
  StepSum(const StepSum&) = delete;
  StepSum& operator=(const StepSum&) = delete;

  SendingSchedule schedule() const { return schedule_; }
  /// Must be called after the backward of the first step, on all ranks.
  /// `came_once` says whether each gradient came once on all ranks.
  void set_schedule(bool came_once);
  /// State of the step. If its `repeated` was sent, the sums are wrong.
  const GradientSyncState& state() const { return sync_.state(); }

  /// Must be called before the backward of this rank's last shard. `earlier`
  /// are the partial sums of the shards before it. They must stay alive until
  /// end_backward() returns.
  void begin(const std::vector<PartialSum>& earlier);
  /// Called in that backward after a gradient was added to `leaf`, which stands
  /// for parameter `p`. A later call may take the .grad of `leaf`.
  void add(size_t p, const torch::Tensor& leaf);
  /// Must be called after that backward. `gradients` has one gradient of the
  /// last shard for each parameter, except those that were taken. If gradients
  /// are sent as they arrive, takes and sends the rest.
  void end_backward(std::vector<OwnedGradient>& gradients);
  /// Waits until everything sent in the backward is summed. Throws CommError.
  /// Must not be called in a replica's thread, where an exception would be
  /// attributed to the replica.
  void finish();
  /// Sums this rank's partial sums after its backward. Collective.
  void sum_after(std::vector<PartialSum> partials);
  /// Takes part in all sums if the step fails before finish(), so that the
  /// ranks stay in step with each other. Does nothing between steps.
  void abandon() noexcept;
  /// Once, after the first step with a backward: puts the buckets into the
  /// order in which rank 0's gradients arrived. Collective, between steps.
  void follow_order();

  /// Returns, after the sum, whether this rank had a gradient for parameter
  /// `p`.
  bool has_gradient(size_t p) const { return has_gradient_[p]; }
  /// Returns the sums, one for each parameter. They may be in memory that the
  /// next step uses.
  std::vector<OwnedGradient> take_sums();

 private:
  /// Starts a step that expects `expected` gradients of each parameter.
  void start(const std::vector<PartialSum>& earlier, int64_t expected);
  /// Takes the gradient of the parameter that arrived last.
  void take_pending();
  /// Takes over this rank's gradient of the last shard for `p`, adds those of
  /// the earlier shards, and sends the sum. An undefined tensor stands for no
  /// gradient.
  void fill(size_t p, OwnedGradient gradient);
  void fill_rest(std::vector<OwnedGradient>& gradients);
  /// Sums a large gradient. Runs in the thread that sums.
  void sum_large(size_t p, const torch::Tensor& elements);

  ProcessGroup world_;
  std::vector<torch::Tensor> parameters_;
  Options options_;
  SendingSchedule schedule_ = SendingSchedule::kNotKnown;
  const std::vector<PartialSum>* earlier_ = nullptr;  // of this step
  std::vector<bool> has_gradient_;  // by parameter, in this step
  struct Pending {
    size_t p;
    torch::Tensor leaf;
  };
  std::optional<Pending> pending_;  // complete, but autograd still holds it
  // Large parameters only: the gradient, then its sum, until take_sums().
  // By parameter.
  std::vector<OwnedGradient> sums_;
  std::atomic<int64_t> bytes_to_send_{0};  // only of large gradients
  GradientSync sync_;  // last, so that its thread ends first
};

}  // namespace lockstep
