#pragma once

#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

// What the fuzz targets share. A target is tests/fuzz/<name>_fuzz.cc with
// LLVMFuzzerTestOneInput in it, and throws what a reader must not throw.
namespace lockstep::fuzz {

/// Ends the run with `what` unless `holds`: the input is kept as a crash.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Bytes as a file to read: in memory, so that a disk is not the limit.
class Input {
 public:
  explicit Input(std::string_view bytes)
      : bytes_(bytes), fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(fd_ >= 0, "no file in memory");
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      require(written > 0, "the file in memory takes no more");
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  ~Input() { ::close(fd_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  std::string_view bytes() const { return bytes_; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  std::string_view bytes_;
  int fd_;
};

/// A path to write one file to, removed after. In $TMPDIR, or in memory.
class Output {
 public:
  Output() {
    const char* folder = ::getenv("TMPDIR");
    folder_ = std::string(folder ? folder : "/dev/shm") + "/fuzz-XXXXXX";
    require(::mkdtemp(folder_.data()) != nullptr, "no folder to write to");
  }
  ~Output() {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  std::string path() const { return folder_ + "/output"; }

 private:
  std::string folder_;
};

}  // namespace lockstep::fuzz
