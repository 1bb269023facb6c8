#pragma once

#include <exception>
#include <filesystem>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

// Helpers of the fuzz targets. A target is tests/fuzz/<name>_fuzz.cc with
// LLVMFuzzerTestOneInput. It throws if a reader breaks its contract.
namespace lockstep::fuzz {

/// Ends the run with `what` unless `holds` is true. The input is then kept as a
/// crash.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Checks text that is printed to terminals and logs. The content of a file
/// must not corrupt them.
inline void require_plain(std::string_view text, const char* what) {
  for (const char letter : text) require(letter >= ' ' && letter <= '~', what);
}

/// Checks the message of an exception that a reader threw.
inline void require_plain_message(const std::exception& error) {
  require_plain(error.what(), "an error's message is not plain");
}

/// Bytes to read as a file. The file is in memory, so the disk doesn't limit
/// speed.
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

/// A folder to write to, which is removed with its contents. It is in $TMPDIR,
/// or in memory.
class Folder {
 public:
  Folder() {
    const char* parent = ::getenv("TMPDIR");
    path_ = std::string(parent ? parent : "/dev/shm") + "/fuzz-XXXXXX";
    require(::mkdtemp(path_.data()) != nullptr, "no folder to write to");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A path for writing one file, which is removed afterwards.
class Output {
 public:
  std::string path() const { return folder_.path() + "/output"; }

 private:
  Folder folder_;
};

}  // namespace lockstep::fuzz
