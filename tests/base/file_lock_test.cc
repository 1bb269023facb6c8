#include "lockstep/base/file_lock.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/base/atomic_folder.h"
#include "lockstep/base/error.h"
#include "tests/base/refused_call.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Errors of flock() on file systems without locks.
constexpr int kWithoutLocks[] = {ENOSYS, ENOLCK, ENOTSUP, EINVAL, EBADF};

FileDescriptor open_folder(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY));
}

TEST(FileLock, IsTakenWhileAnotherDescriptorHoldsIt) {
  const TemporaryFolder folder;
  FileDescriptor first = open_folder(folder.path());
  const FileDescriptor second = open_folder(folder.path());
  EXPECT_EQ(try_lock(first), FileLock::kHeld);
  EXPECT_EQ(try_lock(second), FileLock::kTaken);
  first.close();
  EXPECT_EQ(try_lock(second), FileLock::kHeld);
}

TEST(FileLock, IsNotTakenOnAFileSystemWithoutLocks) {
  const TemporaryFolder folder;
  for (const int error : kWithoutLocks) {
    with_refused_call(SYS_flock, error, [&] {
      const FileDescriptor file = open_folder(folder.path());
      EXPECT_EQ(try_lock(file), FileLock::kUnsupported) << error;
      EXPECT_EQ(errno, error);
    });
  }
}

TEST(FileLock, NoticesThatTheFileWasRemovedOrReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder.path("inner");
  fs::create_directory(path);
  const FileDescriptor inner = open_folder(path);
  EXPECT_TRUE(has_path(inner, path));
  fs::rename(path, folder.path("elsewhere"));
  EXPECT_FALSE(has_path(inner, path));
  fs::create_directory(path);
  EXPECT_FALSE(has_path(inner, path));
}

TEST(AtomicFolder, IsWrittenOnAFileSystemWithoutLocks) {
  for (const int error : kWithoutLocks) {
    const TemporaryFolder parent;
    with_refused_call(SYS_flock, error, [&] {
      AtomicFolder folder(parent.path("whole"));
      write_text(folder.temporary() + "/file", "content");
      // Nothing shows that the owner is dead.
      sweep_unfinished_folders(parent.path());
      folder.commit();
    });
    EXPECT_EQ(only_entry(parent.path()).filename(), "whole") << error;
    EXPECT_EQ(content_of(parent.path("whole/file")), "content");
  }
}

}  // namespace
}  // namespace lockstep
