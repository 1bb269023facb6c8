#include "lockstep/comm/shm/peer_process.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

// The fields of /proc/PID/stat after the name, which may hold anything.
std::string stat_after_name(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");
  return end == std::string::npos ? std::string() : line.substr(end + 2);
}

}  // namespace

uint64_t start_time_of(pid_t pid) {
  std::istringstream fields(stat_after_name(pid));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

PeerProcess::PeerProcess(pid_t pid, uint64_t start_time)
    : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  const int error = errno;
  if (pidfd_.is_open() && start_time_of(pid) == start_time) return;
  throw CommError(
      {.what = fmt::format("process {} of another rank is gone", pid),
       .got = pidfd_.is_open() ? "another process of that number"
                               : std::strerror(error),
       .fix = "look at that rank's own error"});
}

bool PeerProcess::has_ended() const {
  if (!pidfd_.is_open()) return false;
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) > 0;
}

std::string PeerProcess::state() const {
  if (has_ended()) return "has ended";
  const std::string fields = stat_after_name(pid_);
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
