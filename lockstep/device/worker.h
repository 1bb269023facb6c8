#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

/// A thread bound to one device.
///
/// On a slice, the thread and the intra-op threads it starts are pinned to the
/// slice's cores, its allocations are charged to the slice's account, and it
/// computes with `intra_op_threads` threads. On an accelerator, the device is
/// set and the thread has its own stream on it. On other devices, a task uses
/// the streams of its caller.
class Worker {
 public:
  /// `intra_op_threads` 0: one per core of the slice.
  explicit Worker(const Device& device, int intra_op_threads = 0);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Device& device() const;
  int intra_op_threads() const;

  /// Gives `task` to the thread and returns. wait() waits until it ends. Only
  /// one task can run at a time. It runs with the caller's autograd and
  /// autocast state.
  void start(std::function<void()> task);
  /// Waits for the task and rethrows its exception, if any.
  void wait();
  bool is_current_thread() const;
  /// Runs `task` in the calling thread, in the worker's stream on its GPU.
  /// Needed in a thread of LibTorch's autograd engine: the worker's thread
  /// can't run a backward while that thread waits for it.
  void run_here(const std::function<void()>& task);

  /// Seconds spent in tasks since reset_busy().
  double busy_s() const;
  void reset_busy();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the device that this thread works for, such as the replica's device
/// in its forward. It is the whole host in a thread that is not a Worker's.
Device current_device();

/// Runs `task(k)` on workers[k] concurrently and waits for all of them. Then it
/// rethrows the exception of the first worker that failed, in the order of the
/// workers. A task must not call run_all() on the same workers.
void run_all(const std::vector<std::unique_ptr<Worker>>& workers,
             const std::function<void(size_t)>& task);

}  // namespace lockstep
