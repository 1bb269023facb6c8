// Two runs never write to the same folder.
#include "lockstep/train/run/run_lock.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/file_lock.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/log.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"
#include "tests/base/refused_call.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

// A process that has the lock of `folder` until it is killed.
class LockingProcess {
 public:
  explicit LockingProcess(const std::string& folder) {
    Pipe locked = make_pipe();
    pid_ = ::fork();
    if (pid_ == 0) {
      const RunLock lock(folder);
      ::write(locked.write.get(), "1", 1);
      for (;;) ::pause();
    }
    locked.write.close();
    char text = 0;
    has_lock_ = ::read(locked.read.get(), &text, 1) == 1;
  }
  ~LockingProcess() { kill(); }
  LockingProcess(const LockingProcess&) = delete;
  LockingProcess& operator=(const LockingProcess&) = delete;

  bool has_lock() const { return has_lock_; }
  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  bool has_lock_ = false;
};

TEST(RunLock, NamesTheProcessThatHasTheFolder) {
  const TemporaryFolder folder;
  const LockingProcess owner(folder.path());
  ASSERT_TRUE(owner.has_lock());
  expect_problem(
      error_of<CheckpointError>([&] { const RunLock lock(folder.path()); }),
      ErrorCode::kResumeConflict,
      {folder.path(), std::to_string(owner.pid()), host_name()});
}

TEST(RunLock, IsFreeWhenItsOwnerWasKilled) {
  const TemporaryFolder folder;
  LockingProcess owner(folder.path());
  ASSERT_TRUE(owner.has_lock());
  owner.kill();
  const RunLock lock(folder.path());
  EXPECT_TRUE(std::filesystem::exists(folder.path("run.lock")));
}

TEST(RunLock, CanNotBeTakenByAnotherUserOfTheHost) {
  const TemporaryFolder folder;
  // An earlier version left a file that others can open.
  write_text(folder.path("run.lock"), "");
  std::filesystem::permissions(folder.path("run.lock"),
                               std::filesystem::perms(0644));
  for (int run = 0; run < 2; ++run) {
    const RunLock lock(folder.path());
    EXPECT_EQ(std::filesystem::status(folder.path("run.lock")).permissions(),
              std::filesystem::perms(0600));
  }
}

TEST(RunLock, NamesNoProcessThatHasEnded) {
  const TemporaryFolder folder;
  std::string left;
  {
    LockingProcess killed(folder.path());
    ASSERT_TRUE(killed.has_lock());
    left = content_of(folder.path("run.lock"));
  }
  // The kernel may give the number of the killed process to another one.
  const std::string reused =
      fmt::format("{}{}", ::getpid(), left.substr(left.find(' ')));
  for (const std::string& text :
       {left, reused, std::string("?"), std::string()}) {
    write_text(folder.path("run.lock"), text);
    const FileDescriptor file(
        ::open(folder.path("run.lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(try_lock(file), FileLock::kHeld);
    const std::string message = error_of<CheckpointError>(
        [&] { const RunLock lock(folder.path(), /*patience_s=*/0); });
    expect_problem(message, ErrorCode::kResumeConflict,
                   {"unknown process", "fuser " + folder.path("run.lock")});
  }
}

TEST(RunLock, WarnsOnAFileSystemWithoutLocks) {
  for (const int error : {ENOSYS, ENOLCK, ENOTSUP}) {
    const TemporaryFolder folder;
    const LogCapture log;
    with_refused_call(SYS_flock, error, [&] {
      ImageTraining options = sharded_run();
      options.out_dir(folder.path("run"));
      const RunReport report = run_training(options);
      EXPECT_EQ(report.checkpoints.failed, 0);
      EXPECT_TRUE(
          std::filesystem::exists(report.last_checkpoint + "/manifest.json"));
    });
    EXPECT_PRED2(contains, log.text(), "has no locks");
  }
}

TEST(RunLock, LeavesNoFileBehind) {
  const TemporaryFolder folder;
  { const RunLock lock(folder.path()); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(RunLock, IsTakenAwayFromNobodyWhoseFileHasAnotherName) {
  const TemporaryFolder folder;
  std::optional<RunLock> former(folder.path());
  // Somebody removed the file, and another run began.
  std::filesystem::remove(folder.path("run.lock"));
  const RunLock other(folder.path());
  former.reset();
  EXPECT_TRUE(std::filesystem::exists(folder.path("run.lock")));
}

TEST(RunLock, KeepsASecondRunOutWhileTheFirstTrains) {
  for (const std::string backend : {"", "shm", "tcp"}) {
    const TemporaryFolder folder;
    ImageTraining options = sharded_run();
    options.out_dir(folder.path());
    std::optional<ErrorCode> code;
    const Stop try_second = [&] {
      ImageTraining second = options;
      second.checkpoint().resume("auto");
      if (!code) code = error_code_of([&] { run_training(second); });
      return 0;
    };
    const RunReport report = backend.empty()
                                 ? run_training(options, try_second)
                                 : distributed(options, 2, backend, try_second);
    EXPECT_EQ(code, ErrorCode::kResumeConflict) << backend;
    EXPECT_GT(report.steps, 0);
    EXPECT_FALSE(std::filesystem::exists(folder.path("run.lock")));
  }
}

}  // namespace
}  // namespace lockstep::training
