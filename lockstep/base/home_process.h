#pragma once

#include <cstdint>
#include <sys/types.h>

namespace lockstep {

/// The process that made an object.
///
/// fork() copies memory, but not threads, and the child's descriptors belong to
/// the same sockets and files. An object that has a thread, a connection or a
/// lock must not end it in a child, which has only a copy of the object.
class HomeProcess {
 public:
  /// Refers to this process.
  HomeProcess();

  /// Returns false in a child of that process. Costs no system call.
  bool is_this_process() const { return generation_ == current(); }
  pid_t pid() const { return pid_; }

 private:
  static uint64_t current();

  uint64_t generation_;
  pid_t pid_;
};

}  // namespace lockstep
