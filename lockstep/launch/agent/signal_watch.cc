#include "lockstep/launch/agent/signal_watch.h"

#include <cerrno>
#include <cstring>
#include <sys/signalfd.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

SignalWatch::SignalWatch(const std::vector<int>& signals) {
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : signals) {
    if (signal == SIGHUP && is_ignored(signal)) continue;
    ::sigaddset(&watched, signal);
  }
  fd_ = FileDescriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw LaunchError({.code = ErrorCode::kProcessStart,
                       .what = "can't watch for signals",
                       .got = std::strerror(errno)});
  }
  // Threads that start from now on inherit the mask.
  ::pthread_sigmask(SIG_BLOCK, &watched, &former_mask_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &former_pipe_);
}

SignalWatch::~SignalWatch() {
  while (take()) {  // a pending signal would kill the process now
  }
  ::sigaction(SIGPIPE, &former_pipe_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
}

std::optional<int> SignalWatch::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

std::optional<int> SignalWatch::take_last() {
  std::optional<int> last;
  while (const auto signal = take()) last = signal;
  return last;
}

}  // namespace lockstep::launch
