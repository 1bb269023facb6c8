#include "lockstep/base/blocked_sigpipe.h"

#include <ctime>
#include <pthread.h>

namespace lockstep {
namespace {

sigset_t sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

BlockedSigpipe::BlockedSigpipe() {
  const sigset_t set = sigpipe();
  was_pending_ = is_pending();
  pthread_sigmask(SIG_BLOCK, &set, &former_);
}

BlockedSigpipe::~BlockedSigpipe() {
  // SIGPIPE goes to the thread that wrote. If one is pending now, it came from
  // a write in this scope, and would end the process once it is unblocked.
  const sigset_t set = sigpipe();
  if (!was_pending_ && is_pending()) {
    const timespec at_once{};
    sigtimedwait(&set, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

}  // namespace lockstep
