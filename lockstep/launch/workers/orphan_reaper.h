#pragma once

#include <set>
#include <sys/types.h>

namespace lockstep::launch {

/// While it lives, what the workers leave behind when they end becomes a child
/// of this process (PR_SET_CHILD_SUBREAPER), however it hid: it is found and
/// can be ended. A child that this process got otherwise in the meantime is
/// taken for one of them.
class OrphanReaper {
 public:
  OrphanReaper();
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  /// A child that is none.
  void ignore(pid_t pid) { ignored_.insert(pid); }
  /// It has ended, and its number may become another's.
  void stop_ignoring(pid_t pid) { ignored_.erase(pid); }
  /// Takes notice of those that ended by themselves.
  void reap() const;
  /// Kills all, and those that they leave in turn. Gives up after 5 seconds:
  /// a process in the kernel's hands can't be ended.
  void kill_all() const;

 private:
  std::set<pid_t> orphans() const;

  std::set<pid_t> ignored_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep::launch
