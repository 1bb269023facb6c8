#pragma once

#include <set>
#include <sys/types.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// Finds and kills the processes that workers leave behind.
///
/// While this object exists, they become children of this process
/// (PR_SET_CHILD_SUBREAPER), even if they left the worker's process group. Any
/// other child of this process also counts as left behind, unless it is a
/// worker or is older than this object.
///
/// A separate process watches the agent. If the agent is killed by SIGKILL, it
/// kills the process groups of the workers. (The kernel then kills the workers
/// themselves, but not the processes that they started.)
class Leftovers {
 public:
  /// Throws LaunchError.
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  /// Adds a worker, which leads a process group.
  void add_worker(pid_t pid);
  /// Removes a worker that was reaped. Call it before another process can get
  /// the same number.
  void remove_worker(pid_t pid);

  /// Reaps the processes that have ended.
  void reap() const;
  /// Kills all processes, and those that they leave behind in turn. Gives up
  /// after 5 seconds, because a process that hangs in a system call can't be
  /// killed.
  void kill_all() const;

 private:
  std::set<pid_t> find() const;
  void write_to_watchdog(pid_t word);

  pid_t watchdog_ = -1;
  FileDescriptor pipe_;  // to the watchdog
  std::set<pid_t> ignored_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep::launch
