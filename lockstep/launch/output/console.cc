#include "lockstep/launch/output/console.h"

#include <cerrno>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_error.h"
#include "lockstep/base/output.h"

namespace lockstep::launch {
namespace {

bool is_regular_file(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode);
}

}  // namespace

Console::Console(int fd) : fd_(fd), is_file_(is_regular_file(fd)) {}

// A pipe that is ready accepts PIPE_BUF bytes without blocking and atomically:
// other writers can't write in between. (O_NONBLOCK can't be used instead,
// because the shell and other programs share that flag of the pipe.)
size_t Console::next_piece(size_t written) const {
  const size_t rest = pending_.size() - written;
  if (is_file_ || rest <= PIPE_BUF) return rest;
  const auto newline = pending_.rfind('\n', written + PIPE_BUF - 1);
  if (newline == std::string::npos || newline < written) return PIPE_BUF;
  return newline + 1 - written;
}

bool Console::is_ready() const {
  return wait_for(fd_, POLLOUT, /*deadline=*/{});
}

// A write to a closed terminal fails with EIO.
bool Console::is_reader_gone() const {
  return error_ == EPIPE || (error_ == EIO && !is_file_);
}

std::string Console::why_broken() const {
  return std::string(file_error("write", name_of_output(fd_), error_).text());
}

void Console::write_some() {
  size_t written = 0;
  while (written < pending_.size() && is_ready()) {
    const ssize_t count =
        ::write(fd_, pending_.data() + written, next_piece(written));
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
      written = pending_.size();
    }
  }
  pending_.erase(0, written);
}

}  // namespace lockstep::launch
