#include "lockstep/base/output.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/file_error.h"

namespace lockstep {
namespace {

// Returns 0 or an errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      // Another program that shares the pipe made it non-blocking.
      wait_for(fd, POLLOUT, EventLoop::Time::max());
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

void open_standard_files() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

void write_now(std::FILE* file, std::string_view text) {
  const int fd = fileno(file);
  const int code = std::fflush(file) != 0 ? errno : write_all(fd, text);
  if (code != 0) throw file_error("write", name_of_output(fd), code);
}

void flush_output(std::FILE* file) {
  // If an earlier write failed, its errno is no longer known.
  const int code = std::fflush(file) != 0   ? errno
                   : std::ferror(file) != 0 ? EIO
                                            : 0;
  if (code != 0) throw file_error("write", name_of_output(fileno(file)), code);
}

void append_to_file(const std::string& path, std::string_view text) {
  const FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY,
             0666));
  struct stat before {};
  if (!file.is_open() || ::fstat(file.get(), &before) != 0) {
    throw file_error("write", path, errno);
  }
  const int code = write_all(file.get(), text);
  if (code == 0) return;
  if (S_ISREG(before.st_mode) && ::ftruncate(file.get(), before.st_size) != 0) {
    throw file_error("cut", path, errno);
  }
  throw file_error("write", path, code);
}

void write_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void write_new_file(const std::string& path, std::string_view text) {
  const FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const int code = file.is_open() ? write_all(file.get(), text) : errno;
  if (code != 0) throw file_error("write", path, code);
}

std::string name_of_output(int fd) {
  std::error_code error;
  const auto path =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  return !error && path.is_absolute() ? path.string() : "the output";
}

}  // namespace lockstep
