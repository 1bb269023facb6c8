#include "lockstep/launch/output/log_files.h"

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_lock.h"
#include "lockstep/base/host_identity.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "lockstep_";
constexpr size_t kRandomCharacters = 6;
constexpr const char* kLockName = "/agent.lock";

std::string temporary_files() { return env("TMPDIR").value_or("/tmp"); }

bool is_ours(const struct stat& facts) { return facts.st_uid == ::geteuid(); }

// Returns true if a process of this host made the lock: it wrote the host's
// name. Other hosts may share this folder and do not see each other's locks.
bool is_of_this_host(const FileDescriptor& lock) {
  std::array<char, 300> text{};
  const ssize_t size = ::pread(lock.get(), text.data(), text.size(), 0);
  return size > 0 && std::string_view(text.data(), static_cast<size_t>(size)) ==
                         host_name();
}

// Returns the locked file if the process that made `folder` is gone, else a
// closed descriptor.
FileDescriptor lock_of_dead(const std::string& folder) {
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      !is_ours(facts)) {
    return {};
  }
  FileDescriptor lock(::open((folder + kLockName).c_str(),
                             O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const bool is_dead = lock.is_open() && ::fstat(lock.get(), &facts) == 0 &&
                       S_ISREG(facts.st_mode) && is_ours(facts) &&
                       try_lock(lock) == FileLock::kHeld &&
                       is_of_this_host(lock);
  return is_dead ? std::move(lock) : FileDescriptor();
}

void remove_what_the_dead_left() {
  std::error_code error;
  for (fs::directory_iterator it(temporary_files(), error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix) ||
        name.size() != std::strlen(kPrefix) + kRandomCharacters) {
      continue;
    }
    const FileDescriptor lock = lock_of_dead(it->path().string());
    std::error_code ignored;
    if (lock.is_open()) fs::remove_all(it->path(), ignored);
  }
}

// Creates a folder with mode 0700 and a name that can't be guessed. `kind` is
// for the error.
std::string make_unique_folder(const char* kind, const std::string& beginning) {
  std::string path = beginning + std::string(kRandomCharacters, 'X');
  if (::mkdtemp(path.data()) == nullptr) {
    throw IoError(
        {.code = ErrorCode::kFileAccess,
         .what = fmt::format("can't make the {} folder {}", kind, path),
         .got = std::strerror(errno),
         .fix = "choose another --log-dir or TMPDIR"});
  }
  return path;
}

void make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't make the log folder " + path,
                   .got = std::strerror(errno)});
  }
}

// Returns a file name for a run id, which is free text and must not lead out of
// the folder.
std::string as_file_name(std::string run_id) {
  for (char& c : run_id) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  return run_id.substr(0, 100);
}

}  // namespace

RunFolder::RunFolder() {
  remove_what_the_dead_left();
  path_ = make_unique_folder("temporary", temporary_files() + "/" + kPrefix);
  // The file is locked before it contains the host's name. Another run never
  // takes a file without a name. Without locks it stays without a name, and the
  // folder of a run that is killed stays.
  lock_ = FileDescriptor(::open((path_ + kLockName).c_str(),
                                O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const std::string host = host_name();
  if (!lock_.is_open() ||
      (try_lock(lock_) == FileLock::kHeld &&
       ::write(lock_.get(), host.data(), host.size()) < 0)) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't write in the temporary folder " + path_,
                   .got = std::strerror(errno),
                   .fix = "choose another --log-dir or TMPDIR"});
  }
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
}

void RunFolder::keep() {
  is_kept_ = true;
  ::unlink((path_ + kLockName).c_str());
}

LogFiles::LogFiles(const std::string& log_dir, const std::string& run_id,
                   int workers)
    : workers_(workers), is_kept_(!log_dir.empty()) {
  std::string base = log_dir;
  if (base.empty()) {
    temporary_.emplace();
    base = temporary_->path();
  } else {
    make_directories(base);
  }
  // A program may change its working folder, so it gets absolute paths.
  base = fs::absolute(base).string();
  run_ = make_unique_folder("log", base + "/" + as_file_name(run_id) + "_");
  begin_attempt(0);
}

void LogFiles::begin_attempt(int attempt) {
  attempt_ = attempt;
  make_private_folder(attempt_folder());
  for (int rank = 0; rank < workers_; ++rank) make_private_folder(folder(rank));
}

void LogFiles::keep() {
  is_kept_ = true;
  if (temporary_) temporary_->keep();
}

std::string LogFiles::attempt_folder() const {
  return fmt::format("{}/attempt_{}", run_, attempt_);
}

std::string LogFiles::folder(int local_rank) const {
  return fmt::format("{}/{}", attempt_folder(), local_rank);
}

std::string LogFiles::file(int local_rank, const std::string& name) const {
  return folder(local_rank) + "/" + name;
}

}  // namespace lockstep::launch
