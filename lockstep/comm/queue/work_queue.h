#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

#include <c10/util/FunctionRef.h>

#include "lockstep/comm/queue/queued_work.h"

namespace lockstep {

/// Does a rank's operations in the order in which they are submitted: those
/// that the caller waits for in its own thread, if nothing is before them, and
/// the others in a thread of the queue, which is started when it is needed.
///
/// The callbacks of an operation's future run in the queue's thread before the
/// next operation begins. What such a callback submits is done there and then,
/// so it may wait for it, and may do the same again in a callback of that. The
/// order is the same on every rank if each attaches its callback before it
/// submits the next operation: a callback that comes too late for the queue's
/// thread runs in the thread that attaches it, with nothing queued behind.
///
/// A callback that blocks for longer than the timeout of the operation that is
/// next fails all that are queued, and the queue: the ranks' order is lost.
class WorkQueue {
 public:
  using Milliseconds = std::chrono::milliseconds;

  WorkQueue();
  /// Does first what is still in the queue. May be called by a callback.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// What to do when the queue fails, before its operations do: to tell the
  /// other ranks.
  void on_failure(std::function<void(const std::string& reason)> act);

  /// `timeout`: how long the operation may wait in the queue for a callback
  /// to return; 0: for ever.
  c10::intrusive_ptr<QueuedWork> submit(c10::intrusive_ptr<QueuedWork> work,
                                        std::function<void()> task,
                                        bool is_async,
                                        Milliseconds timeout = {});

  /// Does `task` in this thread, as submit() would do it, if nothing is queued
  /// or being done: returns whether that was so. Throws what `task` throws, and
  /// the queue's failure.
  bool run_if_idle(c10::function_ref<void()> task);

  /// Called before a wait for `work`: if this thread is one that runs the
  /// callbacks of the queue that `work` is in, does what is queued up to it.
  static void help_with(QueuedWork& work);

 private:
  class Impl;
  // Shared with its threads: a callback may destroy the queue.
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
