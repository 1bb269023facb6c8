#include "lockstep/base/file_lock.h"

#include <cerrno>
#include <sys/file.h>
#include <sys/stat.h>

namespace lockstep {

FileLock try_lock(const FileDescriptor& file) {
  int status = 0;
  do {
    status = ::flock(file.get(), LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  if (status == 0) return FileLock::kHeld;
  return errno == EWOULDBLOCK ? FileLock::kTaken : FileLock::kUnsupported;
}

bool has_path(const FileDescriptor& file, const std::string& path) {
  struct stat named {};
  struct stat opened {};
  return ::stat(path.c_str(), &named) == 0 &&
         ::fstat(file.get(), &opened) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
}

}  // namespace lockstep
