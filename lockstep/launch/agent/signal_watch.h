#pragma once

#include <csignal>
#include <optional>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// While this object exists, the given signals have no effect except that
/// take() returns them. SIGHUP stays ignored if it was ignored before (nohup).
/// SIGPIPE is ignored, so a closed output is an error of write(). The
/// destructor restores all of this.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  /// Returns the next signal that arrived.
  std::optional<int> take();
  /// Takes all signals that arrived, and returns the last one.
  std::optional<int> take_last();

 private:
  FileDescriptor fd_;
  sigset_t former_mask_{};
  struct sigaction former_pipe_ {};
};

}  // namespace lockstep::launch
