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

// Calls `write_some` until it has written all bytes of the file at `path`.
template <class WriteSome>
void write_all(const std::string& path, std::span<const std::byte> bytes,
               const WriteSome& write_some) {
  while (!bytes.empty()) {
    const ssize_t written = write_some(bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw file_error("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat existing {};
  if (::stat(path_.c_str(), &existing) == 0) {
    if (S_ISDIR(existing.st_mode)) throw file_error("write", path_, EISDIR);
    if (!S_ISREG(existing.st_mode)) {
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      if (fd_ < 0) throw file_error("write", path_, errno);
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
  if (fd_ < 0) throw file_error("write", path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0) throw file_error("write more to", path_, EBADF);
  write_all(path_, bytes, [this](std::span<const std::byte> rest) {
    return ::write(fd_, rest.data(), rest.size());
  });
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::rewrite(size_t offset, std::span<const std::byte> bytes) {
  if (fd_ < 0) throw file_error("write more to", path_, EBADF);
  write_all(path_, bytes, [&](std::span<const std::byte> rest) {
    const size_t at = offset + bytes.size() - rest.size();
    return ::pwrite(fd_, rest.data(), rest.size(), static_cast<off_t>(at));
  });
}

void AtomicFile::commit() {
  if (fd_ < 0) throw file_error("commit again", path_, EBADF);
  if (temporary_.empty()) {
    close_file();
    return;
  }
  if (::fsync(fd_) != 0) throw file_error("sync", path_, errno);
  close_file();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw file_error("rename to", path_, errno);
  }
  temporary_.clear();
  sync_directory(folder_of(path_));
}

void AtomicFile::close_file() {
  const int fd = std::exchange(fd_, -1);
  // Network file systems report a failed write only here.
  if (::close(fd) != 0 && errno != EINTR)
    throw file_error("close", path_, errno);
}

void sync_directory(const std::string& path) {
  const FileDescriptor folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) throw file_error("open folder", path, errno);
  // EINVAL means that the file system can't sync folders.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) {
    throw file_error("sync folder", path, errno);
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
    throw file_error("make folder", part.string(),
                     code == EEXIST ? ENOTDIR : code);
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
    if (got < 0) throw file_error("read", path, errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled > max_bytes) refuse("more");
  }
  content.resize(filled);
  return content;
}

}  // namespace lockstep
