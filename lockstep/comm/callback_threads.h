#pragma once

#include <functional>
#include <memory>

namespace lockstep {

/// Runs callbacks that may block. Each runs in a thread that does nothing else
/// in the meantime: an idle thread if there is one, or a new one. So there are
/// as many threads as callbacks that block at the same time.
class CallbackThreads {
 public:
  CallbackThreads();
  /// Waits for the running callbacks, except for a callback that destroys this
  /// object.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  /// Runs `callback` in another thread, or in the caller's thread if no thread
  /// can be started. `callback` must not throw.
  void run(std::function<void()> callback);

 private:
  class Impl;
  // Shared with the threads, because a callback may destroy this object.
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
