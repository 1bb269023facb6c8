#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/collectives/shared_memory.h"
#include "lockstep/comm/queue/work_queue.h"
#include "lockstep/comm/world.h"
#include "lockstep/device/donated_memory.h"
#include "lockstep/parallel/exchange/comm_stream.h"
#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep {

/// Whether a tensor is dense and so large that it is sent by itself, where it
/// lies: that takes a few microseconds, and to copy it to a message of several
/// and back takes ten times as long.
bool is_large(const torch::Tensor& tensor);

/// Cuts the parameters, taken in `order` (places in `parameters`), into
/// buckets of one type and device. A bucket is full when it has reached its
/// limit in bytes: `first_cap` the first of a type, `cap` the others. The
/// bucket that is complete first comes first. As torch's
/// compute_bucket_assignment_by_size.
std::vector<std::vector<size_t>> assign_buckets(
    std::span<const torch::Tensor> parameters, std::span<const size_t> order,
    int64_t first_cap, int64_t cap);

/// The gradients of a model in buckets, which the ranks sum while a backward
/// still computes other gradients. It is what every way to train over ranks
/// sends its gradients with.
///
/// In a step each rank writes each gradient to its view() and calls
/// mark_ready() for it, in any order. A bucket whose gradients are all there is
/// summed in place by a thread of this object, in the order of the buckets,
/// which is the same on every rank. After wait() every view() holds the sum of
/// all ranks.
///
/// On one host the buckets lie in memory that the ranks share, so that they are
/// summed where they are. A large gradient then need not go to its view():
/// autograd makes most of them in that memory (DonatedMemory), and
/// sum_in_place() takes such a one as it lies. It lies elsewhere on each rank,
/// so each large gradient is an all-reduce of its own, which starts as soon as
/// the gradient is there: it is then still in a cache.
///
/// Over messages a large gradient has no place in a bucket if the caller says
/// how it is summed (LargeSum). The caller then hands each one to
/// sum_in_place(), and no gradient is held twice.
///
/// The first buckets follow the parameters from last to first, as a backward
/// mostly comes to them; rebuild_buckets() puts them into another order.
///
/// One thread at a time calls it. The constructor and what is said to be
/// collective are called by all ranks of the world, in the same order.
class GradientBuckets {
 public:
  /// Sums a large gradient, 1-d in the order of its memory, over the ranks.
  /// Called in the thread that sums.
  using LargeSum = std::function<void(size_t p, const torch::Tensor& elements)>;

  /// Collective. `parameters` are on one device. `cap`: bytes of a bucket; the
  /// first of a type is smaller, so that the exchange starts early.
  /// `large_sum`: of large gradients, where ranks share no memory and there is
  /// no hook; not called elsewhere. Without it they are in buckets.
  GradientBuckets(const World& world, std::vector<torch::Tensor> parameters,
                  int64_t cap, LargeSum large_sum = {});
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Replaces the sum by `hook`. Before the first step.
  void set_hook(CommHook hook);
  bool has_hook() const { return hook_ != nullptr; }

  /// Whether the gradient of `p` has no view(), but is summed in place.
  bool is_apart(size_t p) const { return large_sum_ && is_large_[p]; }
  /// Where the gradient of parameter `p` goes: laid out like it.
  torch::Tensor& view(size_t p) {
    return buckets_[slots_[p].bucket].grads.gradients[slots_[p].index];
  }
  const torch::Tensor& view(size_t p) const {
    return buckets_[slots_[p].bucket].grads.gradients[slots_[p].index];
  }
  /// Each bucket's parameters, by place.
  std::vector<std::vector<size_t>> assignment() const;
  /// Whether the sum multiplies this rank's gradients by the step's weight.
  /// If not, they are weighted before they come here.
  bool applies_weight() const { return is_shared_ || has_hook(); }

  /// Starts a step. `weight` is of this
  /// rank's gradients: for the sum, and for a hook (GradBucket::weight).
  void begin(double weight);
  /// Has the sum of parameter `p` made in `gradient` in this step, and not in
  /// its view. Its memory is no other tensor's. Returns false, and does
  /// nothing, if the other ranks can't see it there, or if it is a small one.
  /// Called in the thread that computes gradients. One that is_apart() is
  /// dense, and held until it is summed.
  bool sum_in_place(size_t p, const torch::Tensor& gradient);
  /// The gradient of parameter `p` is in its view, or summed in place. Called
  /// once for each parameter of a step, also for those without a gradient.
  void mark_ready(size_t p);
  /// Starts what is left of the step: parameters that were not marked are sent
  /// as their views are.
  void mark_all_ready();
  /// Has the thread do `task`, in its turn and after what the caller's stream
  /// was given by now. `name` (a literal) and `index` are those of a TraceSpan.
  void submit(const char* name, int64_t index,
              const std::function<void()>& task);
  /// Until all that was sent or submitted by now is done, however it ended.
  void settle() noexcept;
  /// Until all that was sent or submitted is done. Throws what that threw:
  /// CommError mostly.
  void wait();

  /// Collective, between steps: puts the buckets into the order in which
  /// rank `root`'s gradients came, `arrivals` being that of this rank; those
  /// that did not come stay behind, in the order they have.
  void rebuild_buckets(int root, const std::vector<size_t>& arrivals);

 private:
  struct Bucket {
    std::vector<size_t> places;  // of its parameters
    size_t pending = 0;          // of them, not ready in this step
    GradBucket grads;
  };
  /// What one all-reduce sums: a bucket, or a part of one. A hook gets whole
  /// buckets.
  struct Part {
    size_t bucket = 0;
    std::vector<size_t> places;  // of its parameters; one if that is large
    // Of the bucket: (gradients and gaps between). Undefined: one apart.
    torch::Tensor elements;
    size_t pending = 0;  // of its parameters, not ready in this step
  };
  /// Where the gradient of a parameter is.
  struct Slot {
    size_t bucket = 0;
    size_t index = 0;
    size_t part = 0;
  };

  void allocate(const std::vector<size_t>& order);
  void cut_into_parts(size_t bucket);
  /// Parameters [first, last) of the bucket, elements [begin, end) of it.
  void add_part(size_t bucket, size_t first, size_t last, int64_t begin,
                int64_t end);
  /// Sizes of the tensors for which memory is donated.
  std::vector<int64_t> tensors_of_backward() const;
  /// Has this thread's gradients made in memory_ from now on.
  void donate();
  void send_ready();
  void sum(const Part& part);
  void sum_apart(size_t p);
  void run_hook(GradBucket& grads);

  World world_;
  std::vector<torch::Tensor> parameters_;
  int64_t cap_;
  CommHook hook_;
  LargeSum large_sum_;
  CommStream stream_;
  bool is_shared_;
  // By parameter: has a part of its own, and memory is donated for it. Decided
  // once, for the parameters as they were: they may get other memory later.
  std::vector<bool> is_large_;
  SharedMemory memory_;    // of the buckets, and donated; empty: none
  size_t donated_at_ = 0;  // in memory_
  std::optional<DonatedMemory> donated_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;  // by parameter
  std::vector<torch::Tensor>
      in_place_;             // by parameter, in a step: its elements
  std::vector<Part> parts_;  // in the order of the buckets
  size_t next_ = 0;          // part to be sent, or bucket for a hook
  double weight_ = 1;        // of the step
  std::vector<c10::intrusive_ptr<QueuedWork>> works_;
  WorkQueue queue_;  // last, so that it ends first
};

}  // namespace lockstep
