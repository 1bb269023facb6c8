#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

/// Sums the gradients of a train_step() over ranks while its backward still
/// computes others (GradientBuckets).
///
/// Every rank adds up its own shards first, so World::all_reduce(), whose tree
/// is that of the ranks, makes the tree of all shards if each rank's shards are
/// a node of it: can_sum() says when. A rank without a gradient contributes
/// -0.0, which changes no bit of a sum, not even the sign of a zero.
///
/// What was sent can't be taken back. A gradient that changes afterwards (a
/// backward within the backward adds to it again) makes the step's sums wrong,
/// which is_right() tells; the gradients themselves are untouched, so the ranks
/// can sum those in another way.
class OverlappedSum {
 public:
  /// Whether the sums have the bits of the tree over `shards` shards: each rank
  /// runs 1, 2, 4, ... of them, in one worker, and sums are made in the
  /// parameters' own type.
  static bool can_sum(const std::vector<torch::Tensor>& parameters,
                      int64_t shards, int64_t ranks, int64_t workers);

  OverlappedSum(const World& world,
                const std::vector<torch::Tensor>& parameters);
  ~OverlappedSum();
  OverlappedSum(const OverlappedSum&) = delete;
  OverlappedSum& operator=(const OverlappedSum&) = delete;

  /// Replaces the sum over the ranks by `hook`. Before the first begin().
  void set_hook(const CommHook& hook) { buckets_.set_hook(hook); }

  /// Before the backward of this rank's last shard. `earlier` are the partial
  /// sums of those before it; they must stay until finish() returns.
  void begin(const std::vector<PartialSum>& earlier);
  bool has_begun() const { return earlier_ != nullptr; }
  /// In that backward: parameter `p` has this gradient of the last shard.
  void add(size_t p, const torch::Tensor& gradient);
  /// After it: `gradients` of the last shard, one for each parameter. Sends
  /// those that add() did not see.
  void finish(const std::vector<OwnedGradient>& gradients);
  /// Until all is summed. Throws CommError. Not in a replica's thread, where an
  /// exception counts as the replica's.
  void wait();
  /// Between steps, after one that was right on all ranks, by all of them: puts
  /// the buckets into the order in which rank 0's gradients came then, the
  /// first time that it is called. The sums are gone.
  void follow_arrivals();
  /// If the step fails before wait(): takes part in all sums, so that the
  /// ranks stay in step with each other.
  void abandon() noexcept;

  /// After wait(): whether what this rank contributed is its gradients.
  bool is_right() const { return is_right_; }
  /// After wait(): the sum for parameter `p`, until the next begin().
  OwnedGradient sum(size_t p) const;

 private:
  /// Puts this rank's sum for `p` into its bucket. Undefined: none.
  void fill(size_t p, const torch::Tensor& gradient);

  GradientBuckets buckets_;
  const std::vector<PartialSum>* earlier_ = nullptr;
  std::vector<bool> is_filled_;   // by parameter
  std::vector<size_t> arrivals_;  // in this step, by add()
  bool follows_arrivals_ = false;
  bool is_right_ = true;
};

}  // namespace lockstep
