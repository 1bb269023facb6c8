#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <sys/types.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::shm {

/// Returns the start time of a process, which distinguishes it from a later
/// process with the same id: field 22 of /proc/PID/stat, in clock ticks since
/// boot. Returns 0 if there is no such process. Throws OutOfResources if it
/// can't be read.
uint64_t start_time_of(pid_t pid);
/// Returns the start time of this process, or 0 if it can't be read.
uint64_t own_start_time() noexcept;

/// Another process of this host. It is watched through a pidfd, or in /proc if
/// the system has no pidfd_open(). A new process with the same id is not
/// mistaken for it.
class PeerProcess {
 public:
  PeerProcess() = default;
  /// Throws CommError if the process that started at `start_time` (0 if that is
  /// not known) has ended, and OutOfResources if this process can't open a
  /// descriptor to watch it.
  PeerProcess(pid_t pid, uint64_t start_time);

  pid_t pid() const { return pid_; }
  bool has_ended() const;
  /// Returns "is stopped (SIGSTOP or a debugger)", "runs", "sleeps", "has
  /// ended" and so on, or "is there" if the state can't be read.
  std::string state() const;

 private:
  friend bool may_any_have_ended(std::span<const PeerProcess> peers);

  bool is_watched_in_proc() const { return pid_ != 0 && !pidfd_.is_open(); }

  pid_t pid_ = 0;
  uint64_t start_time_ = 0;
  FileDescriptor pidfd_;
};

/// Returns whether any of the processes may have ended. Makes one system call,
/// however many there are. Always returns true for processes without a pidfd.
bool may_any_have_ended(std::span<const PeerProcess> peers);

}  // namespace lockstep::shm
