#include "lockstep/launch/output/log_files.h"

#include <filesystem>
#include <string>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

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
  EXPECT_TRUE(std::filesystem::is_directory(logs.folder(1)));
  EXPECT_TRUE(logs.folder(1).ends_with("/attempt_1/1"));
}

TEST(LogFiles, OfNobodyAreRemoved) {
  std::string folder;
  {
    const LogFiles logs("", "none", 1);
    folder = logs.run_folder();
    EXPECT_TRUE(std::filesystem::exists(folder));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace lockstep::launch
