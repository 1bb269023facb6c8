#include "lockstep/base/output.h"

#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

// Limits files to `bytes` while this object exists. The system then accepts
// only a part of a write, as it does before a disk is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    former_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &former_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = former_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &former_);
    std::signal(SIGXFSZ, former_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit former_{};
  void (*former_handler_)(int) = nullptr;
};

TEST(AppendToFile, WritesAllOfATextOrNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log");
  append_to_file(path, "first\n");
  {
    const FileSizeLimit limit(8);
    const auto message =
        error_of<IoError>([&] { append_to_file(path, "second\n"); });
    EXPECT_PRED2(contains, message, path);
  }
  EXPECT_EQ(content_of(path), "first\n");
  append_to_file(path, "third\n");
  EXPECT_EQ(content_of(path), "first\nthird\n");
}

TEST(WriteNow, NamesTheFileThatTakesNoMore) {
  std::FILE* const full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  const auto message = error_of<IoError>([&] { write_now(full, "text"); });
  EXPECT_EQ(message,
            "[io] can't write /dev/full: No space left on device; free some "
            "space or choose another folder [file-access]");
  std::fclose(full);
}

TEST(NameOfOutput, IsThePathOfAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log");
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
  EXPECT_EQ(name_of_output(file.get()), path);
  EXPECT_EQ(name_of_output(make_pipe().write.get()), "the output");
}

}  // namespace
}  // namespace lockstep
