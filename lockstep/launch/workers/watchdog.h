#pragma once

#include <sys/types.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// A process that watches the agent. If the agent is killed by SIGKILL, it
/// kills the process groups of the workers. (The kernel then kills the workers
/// themselves, but not the processes that they started.)
class Watchdog {
 public:
  /// Throws LaunchError.
  Watchdog();
  /// Ends the watchdog without killing anything.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Adds the process group of a worker.
  void add(pid_t group);
  /// Removes the group. Call it before another process can get the same number.
  void remove(pid_t group);
  pid_t pid() const { return pid_; }

 private:
  void tell(pid_t word);

  pid_t pid_ = -1;
  FileDescriptor pipe_;
};

}  // namespace lockstep::launch
