#include "lockstep/launch/workers/leftovers.h"

#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch::leftovers_test {
namespace {

// Returns the files that the watchdog of this process has open.
std::vector<std::string> files_of_watchdog() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || parent_of(pid) != ::getpid()) continue;
    if (content_of(entry.path() / "comm") != "lockstep-guard\n") continue;
    for (const auto& file :
         std::filesystem::directory_iterator(entry.path() / "fd")) {
      files.push_back(file.path().filename());
    }
  }
  return files;
}

// A copy of the agent's sockets would keep its port in use after a kill -9.
TEST(Leftovers, OfAnAgentAreWatchedByAProcessWithoutItsFiles) {
  for (int i = 0; i < 20; ++i) {
    const Leftovers leftovers;
    ASSERT_EQ(files_of_watchdog(), std::vector<std::string>{"0"});
  }
}

}  // namespace
}  // namespace lockstep::launch::leftovers_test
