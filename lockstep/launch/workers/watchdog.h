#pragma once

#include <sys/types.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// A process that outlives the agent if that is killed by SIGKILL, and then
/// ends what the workers started. (The workers themselves get SIGKILL from the
/// kernel, but their children would live on.)
class Watchdog {
 public:
  /// Throws LaunchError.
  Watchdog();
  /// Lets it go without a kill.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Watches over the process group of a worker.
  void add(pid_t group);
  /// Not any more: before its number can become another's.
  void remove(pid_t group);
  pid_t pid() const { return pid_; }

 private:
  void tell(pid_t word);

  pid_t pid_ = -1;
  FileDescriptor pipe_;
};

}  // namespace lockstep::launch
