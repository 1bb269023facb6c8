// Programs that are limited by the shell's ulimit.
// Tier: full, by case. Each case starts the program.

#include <csignal>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::limits_test {
namespace {

namespace fs = std::filesystem;

CommandResult run_limited(const std::string& ulimit,
                          const std::string& arguments) {
  return run_command({.arguments = {"sh", "-c",
                                    "ulimit " + ulimit + " && exec '" +
                                        kProgram + "' " + arguments},
                      .environment = {},
                      .deadline_s = 120,
                      .stop = {}});
}

TEST(Limits, OfTheSizeOfFilesAreAnErrorThatLeavesNothingHalf) {
  const TemporaryFolder folder;
  const std::string train =
      "train --model mlp --devices cpu --max-steps 2 --no-eval --quiet "
      "--out-dir " +
      folder.path("run");
  // Blocks of 512 bytes, so the weights don't fit.
  const auto result = run_limited("-f 64", train);
  EXPECT_EQ(result.end, CommandResult::End::kExited);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_problem(result.err, ErrorCode::kCheckpointNotSaved,
                 {"ulimit -f", "32.0 KiB"});
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("step-"));
    EXPECT_FALSE(contains(entry.path().filename().string(), ".tmp"));
  }
}

// The programs that `lockstep run` starts end as they would in a shell.
TEST(Limits, AreLeftToTheWorkersOfAJob) {
  const Ended ended =
      run_sh({"--label-lines", "off"}, "grep SigIgn: /proc/self/status");
  EXPECT_EQ(ended.code, 0) << ended.err;
  const size_t tab = ended.out.find('\t');
  ASSERT_NE(tab, std::string::npos) << ended.out;
  const auto ignored = std::stoull(ended.out.substr(tab + 1), nullptr, 16);
  EXPECT_EQ(ignored >> (SIGXFSZ - 1) & 1, 0u) << ended.out;
}

}  // namespace
}  // namespace lockstep::limits_test
