#include "lockstep/launch/workers/orphan_reaper.h"

#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <memory>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

constexpr double kKillTimeoutS = 5;

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

OrphanReaper::OrphanReaper() : ignored_(children()) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

OrphanReaper::~OrphanReaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
}

std::set<pid_t> OrphanReaper::orphans() const {
  std::set<pid_t> found = children();
  for (const pid_t pid : ignored_) found.erase(pid);
  return found;
}

void OrphanReaper::reap() const {
  for (const pid_t pid : orphans()) ::waitpid(pid, nullptr, WNOHANG);
}

void OrphanReaper::kill_all() const {
  const Stopwatch watch;
  for (auto left = orphans(); !left.empty(); left = orphans()) {
    if (watch.seconds() > kKillTimeoutS) return;
    for (const pid_t pid : left) {
      // The process is our child until it is reaped, so no other process can
      // have the same number.
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, WNOHANG);
    }
    ::poll(nullptr, 0, 2);
  }
}

}  // namespace lockstep::launch
