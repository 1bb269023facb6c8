#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/exchange/partition.h"
#include "lockstep/parallel/exchange/zero_stage.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

/// Sums the gradients of a train_step() over ranks, while its backward still
/// computes others if it can (GradientBuckets).
///
/// Every rank adds up its own shards first, so tree_all_reduce(), whose tree is
/// that of the ranks, makes the tree of all shards if each rank's shards are
/// a node of it: can_sum() says when. A rank without a gradient contributes
/// -0.0, which changes no bit of a sum, not even the sign of a zero.
///
/// A large gradient is taken out of autograd's hands and summed in its own
/// memory, a small one in a bucket, so each gradient is held once. What was
/// sent can't be taken back: to send during the backward is right only if each
/// parameter gets its gradient once in it. So the first backward is watched and
/// its gradients are sent after it (sum_after()). If each came once, on all
/// ranks, the caller has later ones sent as they come (send_early()).
///
/// Where the optimizer's state is cut over the ranks (ZeroStage) a large
/// gradient's sum comes to its owners alone. At ZeroStage::kGradients the rest
/// is freed at once, and the backward waits while much is still to be sent.
class OverlappedSum {
 public:
  /// At ZeroStage::kGradients: a backward waits before it adds to more bytes of
  /// large gradients that are still to be sent than this.
  static constexpr int64_t kMostBytesToSend = 4 << 20;

  /// Whether the sums have the bits of the tree over `shards` shards: each rank
  /// runs 1, 2, 4, ... of them, in one worker, and sums are made in the
  /// parameters' own type and on one device.
  static bool can_sum(const std::vector<torch::Tensor>& parameters,
                      int64_t shards, int64_t ranks, int64_t workers);

  /// `hook` replaces the sum over the ranks, if there is one; then `zero` is
  /// ZeroStage::kNone.
  OverlappedSum(const World& world,
                const std::vector<torch::Tensor>& parameters,
                const Partition& partition, ZeroStage zero,
                const CommHook& hook);
  ~OverlappedSum();
  OverlappedSum(const OverlappedSum&) = delete;
  OverlappedSum& operator=(const OverlappedSum&) = delete;

  /// From the next backward on gradients are sent as they come.
  void send_early() { is_early_ = true; }
  bool is_early() const { return is_early_; }

  /// Before the backward of this rank's last shard. `earlier` are the partial
  /// sums of those before it; they must stay until finish() returns.
  void begin(const std::vector<PartialSum>& earlier);
  /// In that backward: a gradient was added to `leaf`, which stands for
  /// parameter `p`. Its .grad may be taken at a later call.
  void add(size_t p, const torch::Tensor& leaf);
  /// After it: `gradients` of the last shard, one for each parameter, but for
  /// those that were taken. If they are sent early, takes and sends the others.
  void finish(std::vector<OwnedGradient>& gradients);
  /// Until all that was sent early is summed. Throws CommError. Not in a
  /// replica's thread, where an exception counts as the replica's.
  void wait();
  /// Sums this rank's partial sums after its backward. Collective.
  void sum_after(std::vector<PartialSum> partials);
  /// Between steps, after one that was right on all ranks, by all of them: puts
  /// the buckets into the order in which rank 0's gradients came then, the
  /// first time that it is called. The sums are gone.
  void follow_arrivals();
  /// If the step fails before wait(): takes part in all sums, so that the
  /// ranks stay in step with each other.
  void abandon() noexcept;

  /// After the backward: whether each parameter's gradient came once.
  bool is_right() const { return is_right_; }
  /// After the sum: whether this rank had a gradient for parameter `p`.
  bool has_gradient(size_t p) const { return has_gradient_[p]; }
  /// After the sum, once: that of parameter `p`. Of one that is cut only this
  /// rank's own elements hold it.
  OwnedGradient sum(size_t p);

 private:
  void start(const std::vector<PartialSum>& earlier);
  /// Takes the gradient of the parameter that came last.
  void take_pending();
  /// Takes over this rank's gradient of the last shard for `p`, adds those of
  /// the earlier shards, and has the sum sent. An undefined tensor stands for
  /// no gradient.
  void fill(size_t p, OwnedGradient gradient);
  void fill_bucket(size_t p, const torch::Tensor& gradient);
  void fill_apart(size_t p, OwnedGradient gradient);
  void fill_rest(std::vector<OwnedGradient>& gradients);
  /// In the thread that sums.
  void sum_large(size_t p, const torch::Tensor& elements);

  World world_;
  std::vector<torch::Tensor> parameters_;
  const Partition& partition_;
  ZeroStage zero_;
  bool is_early_ = false;
  const std::vector<PartialSum>* earlier_ = nullptr;
  bool is_sending_ = false;         // since begin() or sum_after()
  std::vector<bool> is_filled_;     // by parameter, in this step
  std::vector<bool> has_gradient_;  // by parameter, in this step
  std::vector<bool> has_come_;      // by parameter, in this backward
  std::vector<size_t> arrivals_;    // in this backward
  struct Pending {
    size_t p;
    torch::Tensor leaf;
  };
  std::optional<Pending> pending_;
  bool follows_arrivals_ = false;
  bool is_right_ = true;
  // By parameter. Of a large one: its gradient, then the sum, until sum().
  std::vector<OwnedGradient> sums_;
  // By parameter. At ZeroStage::kGradients: where this rank's part is kept.
  std::vector<torch::Tensor> kept_;
  std::atomic<int64_t> bytes_to_send_{0};  // of large gradients
  GradientBuckets buckets_;  // last, so that its thread ends first
};

}  // namespace lockstep
