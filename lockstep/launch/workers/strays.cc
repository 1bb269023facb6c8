#include "lockstep/launch/workers/strays.h"

#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <memory>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/process_stat.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

constexpr double kPatienceS = 5;

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

Strays::Strays() : known_(children()) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Strays::~Strays() { ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_); }

std::set<pid_t> Strays::found() const {
  std::set<pid_t> strays = children();
  for (const pid_t pid : known_) strays.erase(pid);
  return strays;
}

void Strays::reap() const {
  for (const pid_t pid : found()) ::waitpid(pid, nullptr, WNOHANG);
}

void Strays::end_all() const {
  const Stopwatch watch;
  for (auto strays = found(); !strays.empty(); strays = found()) {
    if (watch.seconds() > kPatienceS) return;
    for (const pid_t pid : strays) {
      // Ours until it is waited for: the number can't be another's yet.
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, WNOHANG);
    }
    ::poll(nullptr, 0, 2);
  }
}

}  // namespace lockstep::launch
