#include "lockstep/shm/peer_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <poll.h>
#include <sstream>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/process.h"

namespace lockstep::shm {
namespace {

/// Works as process_stat(), but throws OutOfResources if the fields can't be
/// read for lack of descriptors or memory.
std::string checked_process_stat(pid_t pid) {
  errno = 0;
  std::string fields = process_stat(pid);
  if (fields.empty() && is_out_of_resources(errno)) {
    throw OutOfResources("comm", fmt::format("can't look at process {}", pid),
                         errno);
  }
  return fields;
}

uint64_t start_time_in(const std::string& stat) {
  std::istringstream fields(stat);
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

/// Returns whether the process that started at `start_time` has ended.
bool has_ended_in_proc(pid_t pid, uint64_t start_time) {
  const std::string stat = process_stat(pid);
  if (stat.empty()) return ::kill(pid, 0) != 0 && errno == ESRCH;
  return stat[0] == 'Z' || stat[0] == 'X' || start_time_in(stat) != start_time;
}

}  // namespace

uint64_t start_time_of(pid_t pid) {
  return start_time_in(checked_process_stat(pid));
}

uint64_t own_start_time() noexcept {
  try {
    return start_time_of(::getpid());
  } catch (const std::exception&) {
    return 0;
  }
}

PeerProcess::PeerProcess(pid_t pid, uint64_t start_time)
    : pid_(pid), start_time_(start_time), pidfd_(open_pidfd(pid)) {
  const int error = errno;
  if (!pidfd_.is_open() && is_out_of_resources(error)) {
    throw OutOfResources(
        "comm", fmt::format("can't watch process {} of another rank", pid),
        error);
  }
  bool is_there = pidfd_.is_open();
  if (!is_there && error == ENOSYS) {
    is_there = ::kill(pid, 0) == 0 || errno == EPERM;
    if (start_time_ == 0) start_time_ = start_time_of(pid);
    if (!has_ended()) return;
  } else if (is_there &&
             (start_time == 0 || start_time_of(pid) == start_time)) {
    return;
  }
  throw CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("process {} of another rank is gone", pid),
       .got = is_there ? "another process of that number"
                       : std::strerror(error == ENOSYS ? ESRCH : error),
       .fix = "look at that rank's own error"});
}

bool PeerProcess::has_ended() const {
  if (is_watched_in_proc()) return has_ended_in_proc(pid_, start_time_);
  return wait_for(pidfd_.get(), POLLIN, /*deadline=*/{});
}

bool may_any_have_ended(std::span<const PeerProcess> peers) {
  std::vector<pollfd> fds;
  fds.reserve(peers.size());
  // poll() skips a descriptor of -1, that of a process that is not watched.
  for (const PeerProcess& peer : peers) {
    if (peer.is_watched_in_proc()) return true;
    fds.push_back({.fd = peer.pidfd_.get(), .events = POLLIN, .revents = 0});
  }
  // If poll() fails, the caller looks at each process.
  return ::poll(fds.data(), fds.size(), 0) != 0;
}

std::string PeerProcess::state() const {
  if (has_ended()) return "has ended";
  std::string fields;
  try {
    fields = checked_process_stat(pid_);
  } catch (const OutOfResources&) {
    return "is there";
  }
  switch (fields.empty() ? 'X' : fields[0]) {
    case 'T':
    case 't':
      return "is stopped (by SIGSTOP or a debugger)";
    case 'R':
      return "runs";
    case 'D':
      return "waits for a disk";
    case 'Z':
    case 'X':
      return "has ended";
    default:
      return "sleeps";
  }
}

}  // namespace lockstep::shm
