// The order of a few system calls decides what survives a power cut, which
// no test can see in the files. This program has its own versions of them,
// which come before those of the C library.
#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/atomic_folder.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::synced_files_test {
namespace {

/// Calls of this thread, or null if nobody records them.
thread_local std::vector<std::string>* calls = nullptr;

/// Returns the last part of a path, without the numbers of a temporary name.
std::string short_name(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename();
  const size_t end = std::min(name.find(".tmp-"), name.find(".unfinished-"));
  if (end == std::string::npos) return name;
  return name.substr(0, end) + " (temporary)";
}

void record(const std::string& call) {
  if (calls != nullptr) calls->push_back(call);
}

/// Returns the calls that `act` makes.
template <class Act>
std::vector<std::string> calls_of(const Act& act) {
  std::vector<std::string> made;
  calls = &made;
  act();
  calls = nullptr;
  return made;
}

void record_sync(int fd) {
  std::error_code ignored;
  record("sync " + short_name(std::filesystem::read_symlink(
                       fmt::format("/proc/self/fd/{}", fd), ignored)));
}

void record_rename(const char* from, const char* to) {
  record("rename " + short_name(from) + " to " + short_name(to));
}

}  // namespace
}  // namespace lockstep::synced_files_test

extern "C" int fsync(int fd) {
  lockstep::synced_files_test::record_sync(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  lockstep::synced_files_test::record_rename(from, to);
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace lockstep::synced_files_test {
namespace {

using Calls = std::vector<std::string>;

TEST(SyncedFile, IsOnTheDiskBeforeItHasItsNameAndTheNameBeforeCommitReturns) {
  const TemporaryFolder folder;
  AtomicFile file(folder.path("model"));
  file.write("weights");
  const std::string parent = short_name(folder.path());
  EXPECT_EQ(calls_of([&] { file.commit(); }),
            (Calls{"sync model (temporary)",
                   "rename model (temporary) to model", "sync " + parent}));
}

TEST(SyncedFolder, IsOnTheDiskBeforeItHasItsNameAndTheNameBeforeCommitReturns) {
  const TemporaryFolder parent;
  AtomicFolder folder(parent.path("step-7"));
  EXPECT_EQ(
      calls_of([&] { folder.commit(); }),
      (Calls{"sync .step-7 (temporary)", "rename .step-7 (temporary) to step-7",
             "sync " + short_name(parent.path())}));
}

}  // namespace
}  // namespace lockstep::synced_files_test
