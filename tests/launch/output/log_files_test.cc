#include "lockstep/launch/output/log_files.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/host_identity.h"
#include "tests/base/refused_call.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

/// A separate $TMPDIR with the folders of runs.
class RunFolders : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = ::getenv("TMPDIR")) previous_ = value;
    ::setenv("TMPDIR", place_.path().c_str(), 1);
  }
  void TearDown() override {
    if (previous_.empty()) {
      ::unsetenv("TMPDIR");
    } else {
      ::setenv("TMPDIR", previous_.c_str(), 1);
    }
  }
  int count() const {
    return static_cast<int>(std::distance(fs::directory_iterator(place_.path()),
                                          fs::directory_iterator()));
  }

  TemporaryFolder place_;

 private:
  std::string previous_;
};

/// A process that has a folder and does nothing.
class OtherRun {
 public:
  OtherRun() {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const RunFolder folder;
      write_text(folder.path() + "/attempt_0/0/stderr.log", "text");
      [[maybe_unused]] const auto told =
          ::write(pipe[1], folder.path().data(), folder.path().size());
      for (;;) ::pause();
    }
    ::close(pipe[1]);
    std::array<char, 4096> text{};
    const ssize_t size = ::read(pipe[0], text.data(), text.size());
    ::close(pipe[0]);
    path_.assign(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  ~OtherRun() { kill(); }
  OtherRun(const OtherRun&) = delete;
  OtherRun& operator=(const OtherRun&) = delete;
  const std::string& path() const { return path_; }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  std::string path_;
};

TEST_F(RunFolders, ArePrivateAndGoWithTheRun) {
  {
    const RunFolder folder;
    struct stat facts {};
    ASSERT_EQ(::stat(folder.path().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);
  }
  EXPECT_EQ(count(), 0);
}

TEST_F(RunFolders, OfAKilledRunAreRemovedByTheNext) {
  OtherRun other;
  ASSERT_TRUE(fs::exists(other.path() + "/attempt_0/0/stderr.log"));
  { const RunFolder next; }
  EXPECT_TRUE(fs::exists(other.path())) << "its run is not over";
  other.kill();
  EXPECT_TRUE(fs::exists(other.path()));
  const RunFolder next;
  EXPECT_FALSE(fs::exists(other.path()));
  EXPECT_TRUE(fs::exists(next.path()));
}

// Lustre without -o flock, NFS without lockd.
TEST_F(RunFolders, WorkOnAFileSystemWithoutLocks) {
  for (const int error : {ENOSYS, ENOLCK, ENOTSUP}) {
    with_refused_call(SYS_flock, error, [&] {
      const RunFolder first;
      const RunFolder second;
      EXPECT_EQ(count(), 2);
    });
    EXPECT_EQ(count(), 0);
  }
  // Another host may have locks on the same files.
  with_refused_call(SYS_flock, ENOLCK, [&] {
    const RunFolder first;
    std::thread([] { const RunFolder second; }).join();
    EXPECT_EQ(count(), 1);
  });
}

TEST_F(RunFolders, ThatAreToBeKeptStay) {
  std::string kept;
  {
    RunFolder folder;
    kept = folder.path();
    folder.keep();
  }
  const RunFolder next;
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(RunFolders, OfOthersAreLeftAlone) {
  // The folder of a user, of another host, one that is being created, and a
  // link.
  write_text(place_.path("lockstep_backup") + "/model", "text");
  write_text(place_.path("lockstep_abcdef") + "/agent.lock", "another-host");
  write_text(place_.path("lockstep_ghijkl") + "/agent.lock", "");
  write_text(place_.path("elsewhere") + "/agent.lock", host_name());
  fs::create_directory_symlink(place_.path("elsewhere"),
                               place_.path("lockstep_mnopqr"));
  // This folder differs from those above only in that it may be removed.
  write_text(place_.path("lockstep_stuvwx") + "/agent.lock", host_name());
  { const RunFolder next; }
  EXPECT_FALSE(fs::exists(place_.path("lockstep_stuvwx")));
  EXPECT_EQ(count(), 5);
}

TEST(LogFiles, AreLaidOutAsTorchrunsAndPrivate) {
  const TemporaryFolder folder;
  LogFiles logs(folder.path("logs"), "job/../1", 2);
  EXPECT_TRUE(logs.is_kept());
  EXPECT_TRUE(logs.run_folder().starts_with(folder.path("logs/job____1_")))
      << logs.run_folder();
  for (int rank = 0; rank < 2; ++rank) {
    struct stat facts {};
    ASSERT_EQ(::stat(logs.folder(rank).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);
    EXPECT_TRUE(
        logs.folder(rank).ends_with("/attempt_0/" + std::to_string(rank)));
  }
  logs.begin_attempt(1);
  EXPECT_TRUE(fs::is_directory(logs.folder(1)));
  EXPECT_TRUE(logs.folder(1).ends_with("/attempt_1/1"));
}

TEST(LogFiles, OfNobodyAreRemoved) {
  std::string folder;
  {
    const LogFiles logs("", "none", 1);
    folder = logs.run_folder();
    EXPECT_TRUE(fs::exists(folder));
  }
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace lockstep::launch
