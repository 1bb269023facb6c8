#pragma once

#include <unistd.h>
#include <utility>

namespace lockstep {

/// An open file descriptor. The destructor closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

/// The two ends of a pipe. Both are closed on exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// Creates a pipe. Throws IoError.
Pipe make_pipe();

}  // namespace lockstep
