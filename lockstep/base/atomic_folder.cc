#include "lockstep/base/atomic_folder.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <regex>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/file_error.h"
#include "lockstep/base/file_lock.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent;
}

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return parent_of(path) / fmt::format(".{}.unfinished-{}-{}",
                                       fs::path(path).filename().string(),
                                       getpid(), counter++);
}

bool is_temporary_name(const std::string& name) {
  static const std::regex pattern(R"(\..+\.unfinished-[0-9]+-[0-9]+)");
  return std::regex_match(name, pattern);
}

FileDescriptor open_folder(const std::string& path) {
  return FileDescriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

void remove_quietly(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace

AtomicFolder::AtomicFolder(std::string path) : path_(std::move(path)) {
  // sweep_unfinished_folders() of another process may remove the new folder
  // before it is locked. In that case, try again with another name.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    temporary_ = temporary_name(path_);
    if (mkdir(temporary_.c_str(), 0700) != 0) {
      if (errno == EEXIST) continue;
      throw file_error("make folder", temporary_, errno);
    }
    lock_ = open_folder(temporary_);
    if (!lock_.is_open()) {
      const int code = errno;
      if (code == ENOENT) continue;
      remove_quietly(temporary_);
      throw file_error("open folder", temporary_, code);
    }
    // Nobody sweeps a folder that can't be locked.
    if (try_lock(lock_) != FileLock::kTaken && has_path(lock_, temporary_)) {
      return;
    }
  }
  throw file_error("lock folder", temporary_, EWOULDBLOCK);
}

AtomicFolder::~AtomicFolder() {
  if (!temporary_.empty()) remove_quietly(temporary_);
}

void AtomicFolder::commit() {
  sync_directory(temporary_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      throw file_error("rename to", path_, errno);
    }
    if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(),
                  RENAME_EXCHANGE) != 0) {
      // The file system has no exchange. Neither folder exists for a moment.
      remove_folder(path_);
      if (rename(temporary_.c_str(), path_.c_str()) != 0) {
        throw file_error("rename to", path_, errno);
      }
    }
  }
  sync_directory(parent_of(path_));
  remove_quietly(temporary_);  // the replaced folder
  temporary_.clear();
}

void sweep_unfinished_folders(const std::string& parent) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (is_temporary_name(entry.path().filename().string())) {
      found.push_back(entry.path().string());
    }
  }
  for (const std::string& path : found) {
    const FileDescriptor folder = open_folder(path);
    if (folder.is_open() && try_lock(folder) == FileLock::kHeld) {
      remove_quietly(path);
    }
  }
}

void remove_folder(const std::string& path) {
  const std::string aside = temporary_name(path);
  if (rename(path.c_str(), aside.c_str()) != 0)
    throw file_error("remove", path, errno);
  remove_quietly(aside);
}

}  // namespace lockstep
