#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/comm/work_queue.h"
#include "lockstep/device/donated_memory.h"
#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep {

/// Returns whether a tensor is dense and large enough to be sent separately, in
/// place. That takes a few microseconds. Copying it to a message of several
/// tensors and back takes ten times as long.
bool is_large(const torch::Tensor& tensor);

/// Assigns the parameters, taken in `order` (indices in `parameters`), to
/// buckets of one type and device. A bucket is full when it reaches its limit
/// in bytes: `first_cap` for the first bucket of a type, `cap` for the others.
/// Buckets are ordered by when they are complete. Same as PyTorch's
/// compute_bucket_assignment_by_size.
std::vector<std::vector<size_t>> assign_buckets(
    std::span<const torch::Tensor> parameters, std::span<const size_t> order,
    int64_t first_cap, int64_t cap);

/// Orders the GPU work of a communication thread on a separate stream: after
/// the work already submitted, before the work that follows, and in parallel
/// with everything in between. Does nothing on the host, where calls are done
/// when they return.
class CommStream {
 public:
  /// A point in the order of a stream; null on the host.
  using Mark = std::shared_ptr<c10::Event>;

  explicit CommStream(torch::Device device);

  /// Returns the current position of the calling thread's stream.
  Mark mark() const;
  /// Makes the calling thread's stream wait for `mark`.
  void wait(const Mark& mark) const;
  /// Makes this the calling thread's stream during the lifetime of the guard.
  c10::OptionalStreamGuard enter() const;

 private:
  torch::Device device_;
  std::optional<c10::Stream> stream_;
};

/// The gradients of a model in buckets, which the ranks sum while a backward
/// still computes other gradients. Reducer and StepSum use it.
/// SharedExchange does not: it sums gradients where autograd made them.
///
/// In a step each rank writes each gradient to its view() and calls
/// mark_ready() for it, in any order. A thread of this object sums a bucket in
/// place when all its gradients are ready. It sums the buckets in order, which
/// is the same on every rank. After wait() every view() holds the sum of all
/// ranks.
///
/// On one host the buckets are in memory that the ranks share, and are summed
/// there. A large gradient then does not have to be copied to its view():
/// autograd creates most of them in that memory (DonatedMemory), and
/// sum_in_place() sums such a gradient in place. Its offset differs between
/// ranks, so each large gradient gets a separate all-reduce. The all-reduce
/// starts as soon as the gradient is ready, while it is still in a cache.
///
/// Over messages, a large gradient has no place in a bucket if the caller
/// passes a function that sums it (LargeSum). The caller then passes each large
/// gradient to sum_in_place(), and no gradient is held twice.
///
/// The first buckets follow the parameters from last to first, the usual order
/// of a backward. rebuild_buckets() changes the order.
///
/// Calls must come from one thread at a time. All ranks of the world must call
/// the constructor and the collective functions in the same order.
class GradientBuckets {
 public:
  /// Sums a large gradient over the ranks, given as a 1-d tensor in the order
  /// of its memory. Called in the thread that sums.
  using LargeSum = std::function<void(size_t p, const torch::Tensor& elements)>;

  /// Makes the buckets. Collective. `parameters` are on one device. `cap` is
  /// the size of a bucket in bytes. The first bucket of a type is smaller, so
  /// that the exchange starts early. `large_sum` sums large gradients if the
  /// ranks share no memory and there is no hook. Without it, large gradients
  /// are in buckets.
  GradientBuckets(const ProcessGroup& world,
                  std::vector<torch::Tensor> parameters, int64_t cap,
                  LargeSum large_sum = {});
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Replaces the sum by `hook`. Must be called before the first step.
  void set_hook(CommHook hook);
  bool has_hook() const { return hook_ != nullptr; }

  /// Returns whether the gradient of `p` has no view() and is summed in place
  /// instead.
  bool is_apart(size_t p) const { return large_sum_ && is_large_[p]; }
  /// The memory for the gradient of parameter `p`, laid out like the parameter.
  const torch::Tensor& view(size_t p) const {
    return buckets_[slots_[p].bucket].grads.gradients[slots_[p].index];
  }
  /// Returns the buckets, each a list of parameter indices.
  std::vector<std::vector<size_t>> assignment() const;
  /// Returns whether the sum multiplies this rank's gradients by the step's
  /// weight. If not, the caller has to weight them.
  bool applies_weight() const { return is_shared_ || has_hook(); }

  /// Starts a step. `weight` is the weight of this rank's gradients, in the sum
  /// and for a hook (GradBucket::weight).
  void begin(double weight);
  /// Makes this step sum parameter `p` in `gradient` instead of in its view. No
  /// other tensor may use the memory of `gradient`. Returns false, and does
  /// nothing, if the other ranks can't access it there, or if it is small. Must
  /// be called in the thread that computes gradients. A gradient that
  /// is_apart() must be dense, and is held until it is summed.
  bool sum_in_place(size_t p, const torch::Tensor& gradient);
  /// Marks the gradient of parameter `p` as ready: it is in its view, or summed
  /// in place. Must be called once for each parameter of a step, even if it has
  /// no gradient.
  void mark_ready(size_t p);
  /// Holds back the last sum of this step until release_last().
  void hold_last() { end_ = parts_.size() - 1; }
  void release_last();
  /// Starts the rest of the step. Views of parameters that were not marked are
  /// sent with their current contents.
  void mark_all_ready();
  /// Makes the thread run `task` in its turn, after the work that the caller's
  /// stream has been given so far. `name` (a literal) and `index` are for a
  /// TraceSpan.
  void submit(const char* name, int64_t index,
              const std::function<void()>& task);
  /// Waits until everything sent or submitted so far has finished or failed.
  void settle() noexcept;
  /// Waits until everything sent or submitted is done. Rethrows its exception,
  /// which is usually a CommError.
  void wait();

  /// Puts the buckets into the order in which the gradients of rank `root`
  /// arrived. `arrivals` is the order on this rank. Parameters that did not
  /// arrive keep their relative order and come last. Collective, between steps.
  void rebuild_buckets(int root, const std::vector<size_t>& arrivals);

 private:
  struct Bucket {
    std::vector<size_t> places;  // indices of its parameters
    GradBucket grads;
  };
  /// The data that one all-reduce or hook sums: a bucket, or a part of one. A
  /// hook gets whole buckets.
  struct Part {
    size_t bucket = 0;
    std::vector<size_t> places;  // its parameters; only one if it is large
    // Its elements in the bucket (gradients and the gaps between them).
    // Undefined if its parameter is apart.
    torch::Tensor elements;
    size_t pending = 0;  // its parameters that are not ready in this step
  };
  /// Location of the gradient of a parameter.
  struct Slot {
    size_t bucket = 0;
    size_t index = 0;
    size_t part = 0;
  };

  void allocate(const std::vector<size_t>& order);
  void cut_into_parts(size_t bucket);
  /// Adds a part with parameters [first, last) and elements [begin, end) of the
  /// bucket.
  void add_part(size_t bucket, size_t first, size_t last, int64_t begin,
                int64_t end);
  /// Sizes of the tensors for which memory is donated.
  std::vector<int64_t> tensors_of_backward() const;
  void send_ready();
  void sum(const Part& part);
  void sum_apart(size_t p);
  void run_hook(GradBucket& grads);

  ProcessGroup world_;
  std::vector<torch::Tensor> parameters_;
  int64_t cap_;
  CommHook hook_;
  LargeSum large_sum_;
  CommStream stream_;
  bool is_shared_;
  // By parameter: whether it has a separate part, and memory donated for it.
  // Decided once, because the parameters may get other memory later.
  std::vector<bool> is_large_;
  SharedMemory memory_;    // buckets and donated memory; may be empty
  size_t donated_at_ = 0;  // offset in memory_
  std::optional<DonatedMemory> donated_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;  // by parameter
  std::vector<torch::Tensor>
      in_place_;             // elements to sum in place, by parameter
  std::vector<Part> parts_;  // in the order of the buckets
  size_t next_ = 0;          // next part to be sent
  size_t end_ = 0;           // no part from here on may be sent yet
  double weight_ = 1;        // weight of this rank in this step
  std::vector<c10::intrusive_ptr<QueuedWork>> works_;
  WorkQueue queue_;  // last, so that it is destroyed first
};

}  // namespace lockstep
