#include "lockstep/launch/workers/watchdog.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {
namespace {

constexpr size_t kMostGroups = 4096;
constexpr pid_t kDone = 0;

// This runs in the forked child of a process with threads, so it may only use
// system calls.
[[noreturn]] void watch(int pipe) {
  ::setsid();  // a separate session, which gets no Ctrl-C
  ::prctl(PR_SET_NAME, "lockstep-guard");
  ::dup2(pipe, 0);
  // All files are closed, especially the pipes of the agent's output, because
  // their readers wait until the last copy is closed.
  ::syscall(SYS_close_range, 1U, ~0U, 0U);
  std::array<pid_t, kMostGroups> groups;
  size_t count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t got = ::read(0, &group, sizeof group);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof group) break;  // the agent is gone
    if (group == kDone) ::_exit(0);
    if (group < 0) {
      for (size_t i = 0; i < count; ++i) {
        if (groups[i] == -group) groups[i--] = groups[--count];
      }
    } else if (count < groups.size()) {
      groups[count++] = group;
    }
  }
  for (size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Watchdog::Watchdog() {
  Pipe pipe = make_pipe();
  pid_ = ::fork();
  if (pid_ == 0) watch(pipe.read.get());
  if (pid_ < 0) {
    throw LaunchError({.code = ErrorCode::kProcessStart,
                       .what = "can't start a process",
                       .got = std::strerror(errno)});
  }
  pipe_ = std::move(pipe.write);
}

Watchdog::~Watchdog() {
  tell(kDone);
  pipe_.close();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Watchdog::add(pid_t group) { tell(group); }

void Watchdog::remove(pid_t group) { tell(-group); }

void Watchdog::tell(pid_t word) {
  // A write of less than PIPE_BUF bytes is atomic.
  while (::write(pipe_.get(), &word, sizeof word) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::launch
