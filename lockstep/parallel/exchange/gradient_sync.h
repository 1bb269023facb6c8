#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/exchange/gradient_sync_state.h"

namespace lockstep {

/// Follows each gradient from autograd to its sum over the ranks, in
/// train_step() (StepSum) and in a loop of forward() and backward()
/// (Reducer).
///
/// The caller says at begin() how many gradients it expects of each parameter,
/// calls arrive() for each that autograd adds, and puts it in its place in
/// buckets() and calls send() when it is complete. After the backward it calls
/// flush(), sends what is unsent(), and calls finish(). gradient_sync_state.h
/// has a table of the calls that are allowed in each state. Other calls throw
/// ParallelError, which names the parameter if the call was for one.
///
/// Calls must come from one thread at a time.
class GradientSync {
 public:
  /// Collective. `names` are those of `parameters`. The other arguments are
  /// those of GradientBuckets.
  GradientSync(const ProcessGroup& world,
               const std::vector<torch::Tensor>& parameters,
               std::vector<std::string> names, int64_t cap,
               GradientBuckets::LargeSum large_sum = {});

  const GradientSyncState& state() const { return state_; }
  /// Layout of the gradients in memory, and the thread that sums them.
  GradientBuckets& buckets() { return buckets_; }
  const GradientBuckets& buckets() const { return buckets_; }

  /// Starts a step. `expected` has the number of gradients of each parameter,
  /// or kUntilFlush. For `weight`, see GradientBuckets::begin().
  void begin(std::span<const int64_t> expected, double weight);
  /// Records that autograd added a gradient to parameter `p`. Returns
  /// kComplete, kRepeated or kDone.
  SyncOutcome arrive(size_t p) { return apply(SyncEvent::kArrive, p); }
  /// Sends the gradient of `p`, which is in its place in buckets().
  void send(size_t p);
  /// Ends the arrivals: each gradient is complete as it is.
  void flush() { apply(SyncEvent::kFlush); }
  /// Returns the parameters that are not sent yet, in the order of the buckets,
  /// so that one bucket can be summed while the next one is filled.
  std::vector<size_t> unsent() const;
  /// Waits until all sums are made. Rethrows the exception of a sum, which is
  /// usually a CommError.
  void finish();
  /// Ends the step. The sums in buckets() are no longer needed.
  void end_step();

  /// Behavior of the other ranks when this rank abandons a step.
  enum class Peers {
    kWait,  ///< they wait for this rank's gradients
    kStop,  ///< the ProcessGroup was aborted
  };
  /// Ends a step that failed on this rank. Does nothing between steps.
  void abandon(Peers peers) noexcept;

  /// Returns whether a step has ended in which gradients were expected, so that
  /// follow_order() is useful.
  bool knows_order() const { return layout_ == Layout::kOrderIsKnown; }
  /// Puts the buckets into the order in which the gradients of rank `root`
  /// arrived in the last step, the first time that it is called. Collective,
  /// between steps. The sums are lost.
  void follow_order(int root);

 private:
  enum class Layout { kByIndex, kOrderIsKnown, kByOrder };

  /// Makes a transition. Throws ParallelError if it is illegal.
  SyncOutcome apply(SyncEvent event, size_t p = 0,
                    std::span<const int64_t> expected = {});

  std::vector<std::string> names_;
  GradientSyncState state_;
  Layout layout_ = Layout::kByIndex;
  GradientBuckets buckets_;
};

}  // namespace lockstep
