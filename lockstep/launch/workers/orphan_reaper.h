#pragma once

#include <set>
#include <sys/types.h>

namespace lockstep::launch {

/// While this object lives, processes that workers leave behind become children
/// of this process (PR_SET_CHILD_SUBREAPER), even if they left the worker's
/// process group, so they can be found and killed. A child that this process
/// gets in any other way counts as one of them, unless it is ignored.
class OrphanReaper {
 public:
  OrphanReaper();
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  /// `pid` is a child of our own, and not an orphan.
  void ignore(pid_t pid) { ignored_.insert(pid); }
  /// `pid` was reaped, so the number may be used by another process.
  void stop_ignoring(pid_t pid) { ignored_.erase(pid); }
  /// Reaps the orphans that have ended by themselves.
  void reap() const;
  /// Kills all orphans, and those that they leave in turn. Gives up after 5
  /// seconds, because a process that hangs in a system call can't be killed.
  void kill_all() const;

 private:
  std::set<pid_t> orphans() const;

  std::set<pid_t> ignored_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep::launch
