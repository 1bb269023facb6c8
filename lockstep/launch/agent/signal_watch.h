#pragma once

#include <csignal>
#include <optional>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// While it lives, the given signals do nothing but wait in take(). SIGHUP
/// stays ignored where it was (nohup). SIGPIPE is ignored: a closed output is
/// an error of write(). Restores all of it.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal that came.
  std::optional<int> take();
  /// The last of those that came; all are taken.
  std::optional<int> take_last();

 private:
  FileDescriptor fd_;
  sigset_t former_mask_{};
  struct sigaction former_pipe_ {};
};

}  // namespace lockstep::launch
