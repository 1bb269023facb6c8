#include "lockstep/base/atomic_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/file_error.h"
#include "lockstep/base/input_file.h"

namespace lockstep {
namespace {

[[noreturn]] void fail(std::string_view act, std::string_view path, int code) {
  throw file_error(act, path, code);
}

std::string folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Resolves links, because a rename would replace the link and not its target.
std::string follow_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(
      ::realpath(path.c_str(), nullptr), &std::free);
  return real ? std::string(real.get()) : path;
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat existing {};
  if (::stat(path_.c_str(), &existing) == 0) {
    if (S_ISDIR(existing.st_mode)) fail("write", path_, EISDIR);
    if (!S_ISREG(existing.st_mode)) {
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      if (fd_ < 0) fail("write", path_, errno);
      return;
    }
    path_ = follow_links(path_);
  }
  static std::atomic<unsigned> counter{0};
  do {
    temporary_ = fmt::format("{}.tmp-{}-{}", path_, ::getpid(), counter++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail("write", path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0) fail("write more to", path_, EBADF);
  // The kernel takes at most 2 GiB - 4 KiB in a call.
  constexpr size_t kMost = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(fd_, bytes.data(), std::min(bytes.size(), kMost));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::rewrite(size_t offset, std::span<const std::byte> bytes) {
  if (fd_ < 0) fail("write more to", path_, EBADF);
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path_, errno);
    offset += static_cast<size_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (fd_ < 0) fail("commit again", path_, EBADF);
  if (temporary_.empty()) {
    close_file();
    return;
  }
  if (::fsync(fd_) != 0) fail("sync", path_, errno);
  close_file();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("rename to", path_, errno);
  }
  temporary_.clear();
  sync_directory(folder_of(path_));
}

void AtomicFile::close_file() {
  const int fd = std::exchange(fd_, -1);
  // Network file systems report a failed write only here.
  if (::close(fd) != 0 && errno != EINTR) fail("close", path_, errno);
}

void sync_directory(const std::string& path) {
  const FileDescriptor folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) fail("open folder", path, errno);
  // EINVAL means that the file system can't sync folders.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) {
    fail("sync folder", path, errno);
  }
}

void make_directories(const std::string& path) {
  std::filesystem::path part;
  for (const auto& piece : std::filesystem::path(path)) {
    part /= piece;
    std::error_code ignored;
    if (std::filesystem::is_directory(part, ignored)) continue;
    if (::mkdir(part.c_str(), 0777) == 0) continue;
    const int code = errno;
    // Another process may have created it in the meantime.
    if (std::filesystem::is_directory(part, ignored)) continue;
    fail("make folder", part.string(), code == EEXIST ? ENOTDIR : code);
  }
}

std::string read_file(const std::string& path, size_t max_bytes) {
  const auto [file, status] = open_regular_file(path);
  const auto size = static_cast<size_t>(status.st_size);
  const auto refuse = [&](const std::string& got) {
    throw IoError({.code = ErrorCode::kFileTooLarge,
                   .what = path + " is too large",
                   .expected = fmt::format("at most {} bytes", max_bytes),
                   .got = got});
  };
  if (size > max_bytes) refuse(fmt::format("{}", size));

  // Files in /proc have size 0, and other files may grow while they are read.
  std::string content;
  content.resize(std::max<size_t>(size + 1, 4096));
  size_t filled = 0;
  while (true) {
    if (filled == content.size()) content.resize(2 * content.size());
    const ssize_t got =
        ::read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path, errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled > max_bytes) refuse("more");
  }
  content.resize(filled);
  return content;
}

}  // namespace lockstep
