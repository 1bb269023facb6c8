#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "lockstep/comm/queue/work_queue.h"
#include "lockstep/comm/world.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

/// Sums gradients over ranks that share no memory while the backward still
/// computes others.
///
/// Each gradient is copied into a bucket when it is final; a full bucket is
/// summed by a thread of this object, in the order of the buckets, which is the
/// parameters' from last to first, as a backward comes to them. Every rank adds
/// up its own shards first, so all_reduce(), whose tree is that of the ranks,
/// makes the tree of all shards if each rank's shards are a node of it:
/// can_sum() says when. A rank without a gradient contributes -0.0, which
/// changes no bit of a sum, not even the sign of a zero.
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
  /// If the step fails before wait(): takes part in all sums, so that the
  /// ranks stay in step with each other.
  void abandon() noexcept;

  /// After wait(): whether what this rank contributed is its gradients.
  bool is_right() const { return is_right_; }
  /// After wait(): the sum for parameter `p`, until the next begin().
  OwnedGradient sum(size_t p) const;

 private:
  struct Bucket {
    torch::Tensor flat;              // (elements), each gradient at 64 bytes
    std::vector<size_t> parameters;  // in it
    size_t missing = 0;              // of them
  };

  void cut_into_buckets(const std::vector<torch::Tensor>& parameters);
  /// Puts this rank's sum for `p` into its bucket. Undefined: none.
  void fill(size_t p, const torch::Tensor& gradient);
  void send_full_buckets();

  World world_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;     // by parameter
  std::vector<torch::Tensor> views_;  // by parameter: laid out like it
  const std::vector<PartialSum>* earlier_ = nullptr;
  std::vector<bool> is_filled_;  // by parameter
  size_t next_bucket_ = 0;       // to be sent
  bool is_right_ = true;
  std::vector<c10::intrusive_ptr<QueuedWork>> works_;
  WorkQueue queue_;  // last, so that it ends first
};

}  // namespace lockstep
