#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <c10/util/FunctionRef.h>

#include "lockstep/comm/queued_work.h"

namespace lockstep {

/// Runs a rank's operations in the order in which they are submitted. An
/// operation that its caller waits for runs in the caller's thread if nothing
/// is queued before it. All others run in a thread of the queue, which is
/// started on demand.
///
/// The callbacks of an operation's future run in the queue's thread before the
/// next operation begins. An operation that such a callback submits runs at
/// once, so the callback may wait for it, and that operation may in turn have
/// callbacks. The order is the same on every rank if each rank attaches its
/// callback before it submits the next operation. If an operation is done
/// before its callback is attached, the callback runs in the thread that
/// attaches it, and nothing is queued behind it.
///
/// If a callback blocks for longer than the timeout of the next operation, all
/// queued operations and the queue itself fail, because the ranks no longer
/// agree on an order.
class WorkQueue {
 public:
  using Milliseconds = std::chrono::milliseconds;

  WorkQueue();
  /// Runs the remaining operations. May be called by a callback.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Sets the function that is called when the queue fails, before its
  /// operations fail. It notifies the other ranks.
  void on_failure(std::function<void(const std::string& reason)> act);

  /// Submits an operation. `timeout` limits how long it may wait in the queue
  /// for a callback to return. 0 means no limit.
  c10::intrusive_ptr<QueuedWork> submit(c10::intrusive_ptr<QueuedWork> work,
                                        std::function<void()> task,
                                        bool is_async,
                                        Milliseconds timeout = {});

  /// If nothing is queued or running, runs `task` in this thread as submit()
  /// would, and returns true. Throws the exception of `task`, or the queue's
  /// failure.
  bool run_if_idle(c10::function_ref<void()> task);

  /// Must be called before a wait for `work`. If this thread runs the callbacks
  /// of the queue that `work` is in, runs the queued operations up to `work`.
  static void help_with(QueuedWork& work);

 private:
  class Impl;
  // Shared with the queue's threads, because a callback may destroy the queue.
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
