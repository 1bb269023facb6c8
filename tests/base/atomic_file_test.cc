#include "lockstep/base/atomic_file.h"

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

size_t entries_in(const std::string& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TemporaryFolder folder;
  const std::string path = folder.path("model");
  AtomicFile file(path);
  file.write("weights ");
  file.write(std::as_bytes(std::span("0123", 4)));
  EXPECT_FALSE(fs::exists(path));
  file.commit();
  EXPECT_EQ(content_of(path), "weights 0123");
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

TEST(AtomicFile, ReplacesWhatWasWrittenAndGoesOnAtTheEnd) {
  const TemporaryFolder folder;
  AtomicFile file(folder.path("model"));
  file.write("????weights");
  file.rewrite(2, std::as_bytes(std::span("12", 2)));
  file.write(" end");
  file.commit();
  EXPECT_EQ(content_of(folder.path("model")), "??12weights end");
}

TEST(AtomicFile, LeavesTheOldFileWhenNotCommitted) {
  const TemporaryFolder folder;
  write_text(folder.path("model"), "old");
  {
    AtomicFile file(folder.path("model"));
    file.write("new");
  }
  EXPECT_EQ(content_of(folder.path("model")), "old");
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

TEST(AtomicFile, ReplacesTheFileThatALinkLeadsTo) {
  const TemporaryFolder folder;
  write_text(folder.path("real"), "old");
  fs::create_symlink("real", folder.path("link"));
  AtomicFile file(folder.path("link"));
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder.path("link")));
  EXPECT_EQ(content_of(folder.path("real")), "new");
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMix) {
  const TemporaryFolder folder;
  AtomicFile first(folder.path("model"));
  AtomicFile second(folder.path("model"));
  first.write("first");
  second.write("second");
  first.commit();
  second.commit();
  EXPECT_EQ(content_of(folder.path("model")), "second");
}

TEST(AtomicFile, TakesTheModeThatTheUmaskLeaves) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  AtomicFile file(folder.path("model"));
  ::umask(before);
  file.commit();
  EXPECT_EQ(fs::status(folder.path("model")).permissions(),
            static_cast<fs::perms>(0640));
}

TEST(AtomicFile, SaysThatAFolderIsMissing) {
  const TemporaryFolder folder;
  const std::string path = folder.path("none/model");
  const auto message = error_of<IoError>([&] { AtomicFile file(path); });
  EXPECT_EQ(message, "[io] can't write " + path +
                         ": No such file or directory; check the path "
                         "[file-access]");
}

TEST(AtomicFile, SaysThatAFolderIsInTheWay) {
  const TemporaryFolder folder;
  EXPECT_TRUE(
      is_error(error_of<IoError>([&] { AtomicFile file(folder.path()); }),
               ErrorCode::kFileAccess, {folder.path()}));
}

TEST(AtomicFile, SaysThatAFolderCannotBeWritten) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path("locked"));
  fs::permissions(folder.path("locked"), fs::perms::owner_read);
  // Root may write anywhere except in the folders of /proc.
  const bool is_root = ::geteuid() == 0;
  const std::string path = is_root ? "/proc/model" : folder.path("locked/m");
  const auto message = error_of<IoError>([&] { AtomicFile file(path); });
  EXPECT_TRUE(is_error(message, ErrorCode::kFileAccess, {path}));
}

TEST(AtomicFile, SaysThatTheDiskIsFull) {
  AtomicFile file("/dev/full");
  const auto message = error_of<IoError>([&] { file.write("x"); });
  EXPECT_EQ(message,
            "[io] can't write /dev/full: No space left on device; free some "
            "space or choose another folder [file-access]");
}

TEST(AtomicFile, WritesStraightToWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK);
  AtomicFile file(path);
  file.write("report");
  file.commit();
  std::array<char, 16> got{};
  EXPECT_EQ(::read(reader, got.data(), got.size()), 6);
  EXPECT_STREQ(got.data(), "report");
  EXPECT_TRUE(fs::is_fifo(path));
  ::close(reader);
}

TEST(AtomicFile, CleansUpAfterAWriteThatFails) {
  const TemporaryFolder folder;
  write_text(folder.path("model"), "old");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  {
    AtomicFile file(folder.path("model"));
    message = error_of<IoError>([&] { file.write(std::string(5000, 'x')); });
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(is_error(message, ErrorCode::kFileAccess,
                       {folder.path("model"), "1000 B", "ulimit -f"}));
  EXPECT_EQ(content_of(folder.path("model")), "old");
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

TEST(AtomicFile, RefusesToGoOnAfterCommit) {
  const TemporaryFolder folder;
  AtomicFile file(folder.path("model"));
  file.commit();
  EXPECT_THROW(file.write("more"), IoError);
  EXPECT_THROW(file.commit(), IoError);
}

TEST(MakeDirectories, MakesAllThatIsMissing) {
  const TemporaryFolder folder;
  make_directories(folder.path("a/b//c/"));
  EXPECT_TRUE(fs::is_directory(folder.path("a/b/c")));
  make_directories(folder.path("a/b/c"));
  make_directories("");
}

TEST(MakeDirectories, NamesThePartInTheWay) {
  const TemporaryFolder folder;
  write_text(folder.path("file"), "");
  const auto message =
      error_of<IoError>([&] { make_directories(folder.path("file/deep/er")); });
  EXPECT_EQ(message, "[io] can't make folder " + folder.path("file") +
                         ": Not a directory [file-access]");
}

TEST(SyncDirectory, SaysThatThereIsNone) {
  EXPECT_THROW(sync_directory("/no/such/folder"), IoError);
}

TEST(ReadFile, ReturnsEveryByte) {
  const TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(i * 7);
  write_text(folder.path("f"), bytes);
  EXPECT_EQ(read_file(folder.path("f"), 100'000), bytes);
  write_text(folder.path("empty"), "");
  EXPECT_EQ(read_file(folder.path("empty"), 0), "");
}

TEST(ReadFile, ReadsFilesThatHaveNoSize) {
  EXPECT_TRUE(contains(read_file("/proc/self/status", 1 << 20), "Pid:"));
}

TEST(ReadFile, RefusesAFileThatIsTooLarge) {
  const TemporaryFolder folder;
  write_text(folder.path("f"), "12345");
  EXPECT_EQ(error_of<IoError>([&] { read_file(folder.path("f"), 4); }),
            "[io] " + folder.path("f") +
                " is too large; expected at most 4 bytes, got 5 "
                "[file-too-large]");
  // A device without an end must also be handled.
  EXPECT_THROW(read_file("/dev/zero", 1 << 20), IoError);
}

TEST(ReadFile, NamesWhatCannotBeRead) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path("none"), folder.path()}) {
    EXPECT_TRUE(is_error(error_of<IoError>([&] { read_file(path, 1 << 20); }),
                         ErrorCode::kFileAccess, {path}));
  }
}

}  // namespace
}  // namespace lockstep
