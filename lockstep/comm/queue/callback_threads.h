#pragma once

#include <functional>
#include <memory>

namespace lockstep {

/// Runs callbacks that may block, each in a thread that has nothing else to do
/// meanwhile: an idle one, or a new one. So there are as many threads as
/// callbacks that wait at once, within each other or not.
class CallbackThreads {
 public:
  CallbackThreads();
  /// Waits for the callbacks that run, except for one that destroys this.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  /// Runs `callback` in the caller's thread if no thread can be started. It
  /// must not throw.
  void run(std::function<void()> callback);

 private:
  class Impl;
  // Shared with its threads: a callback may destroy this.
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
