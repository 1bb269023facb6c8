#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::shm {

/// What tells a process from a later one with the same number: field 22 of
/// /proc/PID/stat, in clock ticks since boot; 0 if there is no such process.
/// Throws OutOfResources if that can't be found out.
uint64_t start_time_of(pid_t pid);
/// Of this process; 0 if it can't be found out.
uint64_t own_start_time() noexcept;

/// Another process of this host, watched through a pidfd, so that its end is
/// known at once and its number can't be taken for a new process's.
class PeerProcess {
 public:
  PeerProcess() = default;
  /// Throws CommError if the process that started at `start_time` (0: that is
  /// not known) is gone, and
  /// OutOfResources if this process can't open anything to watch it.
  PeerProcess(pid_t pid, uint64_t start_time);

  pid_t pid() const { return pid_; }
  bool has_ended() const;
  /// "is stopped (SIGSTOP or a debugger)", "runs", "sleeps", "has ended", ...;
  /// "is there" if no more can be found out.
  std::string state() const;

 private:
  pid_t pid_ = 0;
  FileDescriptor pidfd_;
};

}  // namespace lockstep::shm
