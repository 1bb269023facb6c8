#include "lockstep/shm/peer_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <poll.h>
#include <sstream>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"

namespace lockstep::shm {
namespace {

// The fields of /proc/PID/stat after the name, which may hold anything; "" if
// there is no such process.
std::string stat_after_name(pid_t pid) {
  const FileDescriptor file(
      ::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() && is_out_of_resources(errno)) {
    throw OutOfResources("comm", fmt::format("can't look at process {}", pid),
                         errno);
  }
  std::array<char, 4096> buffer;
  const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
  const std::string_view text(buffer.data(),
                              static_cast<size_t>(std::max<ssize_t>(size, 0)));
  const size_t end = text.rfind(") ");
  return std::string(end == std::string_view::npos ? "" : text.substr(end + 2));
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

uint64_t own_start_time() noexcept {
  try {
    return start_time_of(::getpid());
  } catch (const std::exception&) {
    return 0;
  }
}

PeerProcess::PeerProcess(pid_t pid, uint64_t start_time)
    : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  const int error = errno;
  if (!pidfd_.is_open() && is_out_of_resources(error)) {
    throw OutOfResources(
        "comm", fmt::format("can't watch process {} of another rank", pid),
        error);
  }
  const bool is_there = pidfd_.is_open();
  if (is_there && (start_time == 0 || start_time_of(pid) == start_time)) return;
  throw CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("process {} of another rank is gone", pid),
       .got =
           is_there ? "another process of that number" : std::strerror(error),
       .fix = "look at that rank's own error"});
}

bool PeerProcess::has_ended() const {
  if (!pidfd_.is_open()) return false;
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) > 0;
}

std::string PeerProcess::state() const {
  if (has_ended()) return "has ended";
  std::string fields;
  try {
    fields = stat_after_name(pid_);
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
