// Tests the functions of bin/lockstep that don't need LibTorch.
// Tier: full, by case. It is about starting the program.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::start_test {
namespace {

namespace fs = std::filesystem;

// Returns the time of the fastest of several runs, because the machine may have
// other work.
double seconds_of(const std::vector<std::string>& arguments) {
  double fastest = 1e9;
  for (int i = 0; i < 10; ++i) {
    const Stopwatch watch;
    EXPECT_EQ(run_lockstep(arguments).code, 0);
    fastest = std::min(fastest, watch.seconds());
  }
  return fastest;
}

TEST(Start, AnswersInATenthOfASecondWhatNeedsNoTorch) {
  EXPECT_LT(seconds_of({"--version"}), 0.1);
  EXPECT_LT(seconds_of({"split", "--batch-size", "64"}), 0.1);
  EXPECT_LT(seconds_of({"run", "--", "true"}), 0.3);  // this starts an agent
}

// The loader lists a program's libraries instead of running it.
TEST(Start, LoadsNoTorch) {
  const auto listed =
      run_command({.arguments = {kProgram},
                   .environment = {{"LD_TRACE_LOADED_OBJECTS", "1"}}});
  EXPECT_PRED2(contains, listed.out, "libc.so");
  EXPECT_FALSE(contains(listed.out, "torch")) << listed.out;
}

TEST(Start, RunsTheLauncherWithoutTorch) {
  const auto ended =
      run_lockstep({"run", "--", "grep", "-c", "libc.so", "/proc/self/maps"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto agent = run_lockstep(
      {"run", "--", "sh", "-c", "grep -c libtorch /proc/$PPID/maps; true"});
  EXPECT_EQ(agent.out, "0\n") << agent.err;
}

TEST(Start, CountsGpusByTheirDriver) {
  for (const char* count : {"gpu", "auto"}) {
    const auto ended = run_lockstep(
        {"run", "--label-lines", "off", "--nproc-per-node", count, "--", "sh",
         "-c", "echo $WORLD_SIZE"},
        {{"LD_LIBRARY_PATH", LOCKSTEP_BINARY_DIR "/tests/fake_driver"}});
    EXPECT_EQ(ended.out, "3\n3\n3\n") << count << ended.err;
  }
}

TEST(Start, BecomesTheWholeProgramAlsoThroughALink) {
  const TemporaryFolder folder;
  fs::create_symlink(kProgram, folder.path("linked"));
  const auto linked =
      run_command({.arguments = {folder.path("linked"), "help"}});
  EXPECT_TRUE(linked.ok()) << linked.err;
  EXPECT_EQ(linked.out, run_lockstep({"help"}).out);
}

TEST(Start, SaysThatHalfOfItIsMissing) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path("bin"));
  const std::string copy = folder.path("bin/lockstep");
  fs::copy_file(kProgram, copy);
  const auto alone = run_command({.arguments = {copy, "train"}});
  EXPECT_EQ(alone.exit_code, 1);
  expect_problem(alone.err, ErrorCode::kProcessStart,
                 {folder.path("libexec/lockstep/lockstep")});
  EXPECT_TRUE(run_command({.arguments = {copy, "--version"}}).ok());
}

// Both programs are built from the same options, so both give the same
// explanations.
TEST(Start, ExplainsItsCommandsAsTheWholeProgramDoes) {
  for (const std::string command : {"split", "run"}) {
    EXPECT_EQ(run_lockstep({command, "--help"}).out,
              run_lockstep({"help", command}).out);
  }
  const auto unknown = run_lockstep({"split", "--batchsize", "3"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_PRED2(contains, unknown.err, "did you mean '--batch-size'?");
}

}  // namespace
}  // namespace lockstep::start_test
