#pragma once

#include <csignal>
#include <cstdint>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {

/// A process that only uses a core, until the test ends.
class BusyProcess {
 public:
  BusyProcess() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // in case the test is killed
    for (volatile uint64_t i = 0;; i = i + 1) {
    }
  }
  ~BusyProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  BusyProcess(const BusyProcess&) = delete;
  BusyProcess& operator=(const BusyProcess&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

}  // namespace lockstep
