#pragma once

#include <set>
#include <sys/types.h>

namespace lockstep::launch {

/// While this object exists, processes that workers leave behind become
/// children of this process (PR_SET_CHILD_SUBREAPER), even if they left the
/// worker's process group, so they can be found and killed. Any other child of
/// this process also counts as an orphan, unless it is ignored.
class OrphanReaper {
 public:
  OrphanReaper();
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  /// Ignores `pid`, which is a child of our own rather than an orphan.
  void ignore(pid_t pid) { ignored_.insert(pid); }
  /// Stops ignoring `pid`, which was reaped, so another process may get the
  /// same number.
  void stop_ignoring(pid_t pid) { ignored_.erase(pid); }
  /// Reaps the orphans that have ended.
  void reap() const;
  /// Kills all orphans, and the processes that they leave behind in turn. Gives
  /// up after 5 seconds, because a process that hangs in a system call can't be
  /// killed.
  void kill_all() const;

 private:
  std::set<pid_t> orphans() const;

  std::set<pid_t> ignored_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep::launch
