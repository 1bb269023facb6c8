#pragma once

#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {

/// Runs `act` in a child of fork(). Returns "" if it returns true there, and
/// otherwise how the child ended. A child that hangs is ended after a minute.
inline std::string run_in_child(const std::function<bool()>& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(act() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "it returned false";
}

}  // namespace lockstep
