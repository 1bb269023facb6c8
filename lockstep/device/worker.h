#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

/// A thread bound to one device.
///
/// On a slice it is pinned to the slice's cores (so are the intra-op threads
/// it starts), its allocations go to the slice's account, and it computes with
/// `intra_op_threads` threads. On a GPU it has the device set and a stream of
/// its own.
class Worker {
 public:
  /// `intra_op_threads` 0: one per core of the slice.
  explicit Worker(const Device& device, int intra_op_threads = 0);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Device& device() const;
  int intra_op_threads() const;

  /// Hands over `task` and returns; wait() waits for its end. One task at a
  /// time. The task runs with the caller's autograd and autocast state.
  void start(std::function<void()> task);
  /// Rethrows what the task threw.
  void wait();
  bool is_current_thread() const;

  /// Seconds spent in tasks since reset_busy().
  double busy_s() const;
  void reset_busy();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The device that this thread works for: in a replica's forward that of the
/// replica. In a thread that is no Worker's the whole host.
Device current_device();

/// Runs `task(k)` on workers[k], all at once, and waits for all of them. Then
/// the exception of the first worker that failed, in the order of the workers,
/// is rethrown. A task may not call run_all() on the same workers.
void run_all(const std::vector<std::unique_ptr<Worker>>& workers,
             const std::function<void(size_t)>& task);

}  // namespace lockstep
