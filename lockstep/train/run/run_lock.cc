#include "lockstep/train/run/run_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_lock.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/log.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::training {
namespace {

constexpr auto kRetryEvery = std::chrono::milliseconds(20);

struct Owner {
  pid_t pid = 0;
  std::string host;
  std::string started;  // start_of_process()
};

// Returns when a process of this host started, in ticks since the boot; "" if
// it has ended. A process id may have been given to another process since.
std::string start_of_process(pid_t pid) {
  // Field 22 of proc(5). The first one here is field 3.
  constexpr int kStart = 22 - 3;
  std::istringstream stat(process_stat(pid));
  std::string field;
  for (int i = 0; i <= kStart; ++i) {
    if (!(stat >> field)) return "";
    if (i == 0 && field == "Z") return "";
  }
  return field;
}

std::string text_of_this_process() {
  return fmt::format("{} {} {}\n", ::getpid(), host_name(),
                     start_of_process(::getpid()));
}

// Returns the process that wrote its name into the file. Returns nothing if
// none did, or if that process has ended. A killed run leaves its name, and the
// next owner may be about to write its own, or unable to.
std::optional<Owner> read_owner(const FileDescriptor& file) {
  std::array<char, 300> buffer{};
  const ssize_t size = ::pread(file.get(), buffer.data(), buffer.size(), 0);
  if (size <= 0) return std::nullopt;
  std::istringstream text(
      std::string(buffer.data(), static_cast<size_t>(size)));
  std::string pid;
  Owner owner;
  text >> pid >> owner.host >> owner.started;
  owner.pid = parse_number<pid_t>(pid).value_or(0);
  if (owner.pid <= 0 || owner.host.empty()) return std::nullopt;
  const bool is_here = owner.host == host_name();
  if (is_here && owner.started != start_of_process(owner.pid))
    return std::nullopt;
  owner.host = printable_ascii(owner.host);
  return owner;
}

[[noreturn]] void refuse(const std::string& folder, const std::string& path,
                         const std::optional<Owner>& owner) {
  throw CheckpointError(
      {.code = ErrorCode::kResumeConflict,
       .what = folder + " is in use by another run",
       .expected = "a folder that no other run writes to",
       .got = owner ? fmt::format("one of process {} on {}", owner->pid,
                                  owner->host)
                    : "one of an unknown process",
       .fix = owner ? "choose another --out-dir, or end that run first"
                    : fmt::format("choose another --out-dir, or end the "
                                  "process that `fuser {}` prints",
                                  path)});
}

// Opens the file so that no other user of the host can lock it.
FileDescriptor open_file(const std::string& path) {
  FileDescriptor file(
      ::open(path.c_str(),
             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (file.is_open()) {
    // An earlier version may have left a file that others can open.
    ::fchmod(file.get(), 0600);
    return file;
  }
  throw IoError({.code = ErrorCode::kFileAccess,
                 .what = "can't lock the folder of the run with " + path,
                 .got = std::strerror(errno),
                 .fix = "choose another --out-dir"});
}

}  // namespace

RunLock::RunLock(const std::string& folder, double patience_s)
    : path_(folder + "/run.lock") {
  const Stopwatch waited;
  for (;;) {
    FileDescriptor file = open_file(path_);
    const FileLock lock = try_lock(file);
    if (lock == FileLock::kUnsupported) {
      log_warning("train",
                  fmt::format("nothing keeps a second run out of {}, as its "
                              "file system has no locks: {}",
                              folder, std::strerror(errno)));
      return;
    }
    if (lock == FileLock::kHeld && has_path(file, path_)) {
      file_ = std::move(file);
      break;
    }
    if (waited.seconds() > patience_s) refuse(folder, path_, read_owner(file));
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
  if (file_.is_open() && has_path(file_, path_)) ::unlink(path_.c_str());
}

}  // namespace lockstep::training
