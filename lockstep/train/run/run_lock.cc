#include "lockstep/train/run/run_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/log.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::train {
namespace {

// A killed owner holds the lock until its memory has been freed, and as long as
// a process that it forked is alive.
constexpr double kPatienceS = 5;
constexpr auto kRetryEvery = std::chrono::milliseconds(20);

struct Owner {
  pid_t pid = 0;
  std::string host;
};

std::string text_of_this_process() {
  return fmt::format("{} {}\n", ::getpid(), host_name());
}

// Returns nothing if the owner has not written its name yet, or could not.
std::optional<Owner> read_owner(const FileDescriptor& file) {
  std::array<char, 300> buffer{};
  const ssize_t size = ::pread(file.get(), buffer.data(), buffer.size(), 0);
  if (size <= 0) return std::nullopt;
  const std::string_view text(buffer.data(), static_cast<size_t>(size));
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto pid = parse_number<pid_t>(text.substr(0, space));
  if (!pid || *pid <= 0) return std::nullopt;
  const std::string_view host = text.substr(space + 1);
  return Owner{
      .pid = *pid,
      .host = printable_ascii(std::string(host.substr(0, host.find('\n'))))};
}

[[noreturn]] void refuse(const std::string& folder,
                         const std::optional<Owner>& owner) {
  throw CheckpointError(
      {.code = ErrorCode::kResumeConflict,
       .what = folder + " is in use by another run",
       .expected = "a folder that no other run writes to",
       .got = owner ? fmt::format("one of process {} on {}", owner->pid,
                                  owner->host)
                    : "one of an unknown process",
       .fix = "choose another --out-dir, or end that run first"});
}

FileDescriptor open_file(const std::string& path) {
  FileDescriptor file(
      ::open(path.c_str(),
             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (file.is_open()) return file;
  throw IoError({.code = ErrorCode::kFileAccess,
                 .what = "can't lock the folder of the run with " + path,
                 .got = std::strerror(errno),
                 .fix = "choose another --out-dir"});
}

// Returns true if `file` still has the name `path`. An owner removes the name
// when it ends.
bool is_at(const std::string& path, const FileDescriptor& file) {
  struct stat named {};
  struct stat opened {};
  return ::stat(path.c_str(), &named) == 0 &&
         ::fstat(file.get(), &opened) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
}

}  // namespace

RunLock::RunLock(const std::string& folder) : path_(folder + "/run.lock") {
  const Stopwatch waited;
  for (;;) {
    FileDescriptor file = open_file(path_);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      if (!is_at(path_, file)) continue;
      file_ = std::move(file);
      break;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      log_warning("train",
                  fmt::format("nothing keeps a second run out of {}, as its "
                              "file system has no locks: {}",
                              folder, std::strerror(errno)));
      return;
    }
    if (waited.seconds() > kPatienceS) refuse(folder, read_owner(file));
    std::this_thread::sleep_for(kRetryEvery);
  }
  // On a full disk the owner stays unknown, but the lock still holds.
  const std::string text = text_of_this_process();
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), text.data(), text.size(), 0) < 0) {
    log_debug("train",
              fmt::format("can't write {}: {}", path_, std::strerror(errno)));
  }
}

RunLock::~RunLock() {
  // Removed before the lock is released, so that a run which has opened the
  // file notices that it no longer has a name.
  if (file_.is_open() && is_at(path_, file_)) ::unlink(path_.c_str());
}

}  // namespace lockstep::train
