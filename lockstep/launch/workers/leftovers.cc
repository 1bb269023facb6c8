#include "lockstep/launch/workers/leftovers.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <memory>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

constexpr size_t kMaxGroups = 4096;
constexpr pid_t kDone = 0;

// The watchdog. It runs in the forked child of a process with threads, so it
// may only use system calls.
[[noreturn]] void watch(int pipe) {
  ::setsid();  // a separate session, which gets no Ctrl-C
  ::prctl(PR_SET_NAME, "lockstep-guard");
  ::dup2(pipe, 0);
  // All files are closed, especially the pipes of the agent's output, because
  // their readers wait until the last copy is closed, and the socket at which
  // the agent listens, because its port is in use until then.
  ::syscall(SYS_close_range, 1U, ~0U, 0U);
  std::array<pid_t, kMaxGroups> groups;
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

constexpr double kKillTimeoutS = 5;
constexpr std::chrono::seconds kCloseTimeout{10};
constexpr std::chrono::milliseconds kLookEvery{2};

std::set<pid_t> children() {
  std::set<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"),
                                                   ::closedir);
  if (!folder) return found;
  while (const dirent* entry = ::readdir(folder.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid > 0 && parent_of(pid) == ::getpid()) found.insert(pid);
  }
  return found;
}

}  // namespace

Leftovers::Leftovers() {
  Pipe pipe = make_pipe();
  Pipe is_open = make_pipe();
  watchdog_ = ::fork();
  if (watchdog_ == 0) watch(pipe.read.get());
  if (watchdog_ < 0) {
    throw LaunchError({.code = ErrorCode::kProcessStart,
                       .what = "can't start a process",
                       .got = std::strerror(errno)});
  }
  pipe_ = std::move(pipe.write);
  // Waits until the watchdog has closed its copies of this process's files. On
  // a busy host, that can take a second. If this process were killed meanwhile,
  // its connections would stay open.
  is_open.write.close();
  wait_for(is_open.read.get(), POLLIN,
           std::chrono::steady_clock::now() + kCloseTimeout);
  ignored_ = children();
  ignored_.insert(watchdog_);  // also if /proc can't be read
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Leftovers::~Leftovers() {
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
  write_to_watchdog(kDone);
  pipe_.close();
  while (::waitpid(watchdog_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Leftovers::add_worker(pid_t pid) {
  write_to_watchdog(pid);
  ignored_.insert(pid);
}

void Leftovers::remove_worker(pid_t pid) {
  write_to_watchdog(-pid);
  ignored_.erase(pid);
}

void Leftovers::write_to_watchdog(pid_t word) {
  // A write of less than PIPE_BUF bytes is atomic.
  while (::write(pipe_.get(), &word, sizeof word) < 0 && errno == EINTR) {
  }
}

std::set<pid_t> Leftovers::find() const {
  std::set<pid_t> found = children();
  for (const pid_t pid : ignored_) found.erase(pid);
  return found;
}

void Leftovers::reap() const {
  for (const pid_t pid : find()) ::waitpid(pid, nullptr, WNOHANG);
}

void Leftovers::kill_all() const {
  const Stopwatch watch;
  for (auto left = find(); !left.empty(); left = find()) {
    if (watch.seconds() > kKillTimeoutS) return;
    for (const pid_t pid : left) {
      // The process is our child until it is reaped, so no other process can
      // have the same number.
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, WNOHANG);
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace lockstep::launch
