// Programs with output that can't be written.
// Tier: full, by case. Each case starts the program.
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/checkpoint/folder.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/ddp_runs.h"
#include "tests/cli/program.h"

namespace lockstep::full_disk_test {
namespace {

using ddp_runs::joined;
using ddp_runs::output_of;
using ddp_runs::train_words;

constexpr int kReaderGone = 141;  // 128 + SIGPIPE
constexpr int kNoMount = 77;

// A job with a worker that prints until it is told to end, and then has saved.
const std::string kJob =
    kProgram +
    " run --nproc-per-node 2 -- sh -c \"trap 'exit 75' TERM; "
    "while :; do echo step; sleep 0.05; done\"";

// Runs `command` with its stdout in a file on a disk of 4 KiB, which is mounted
// at `disk` during that time. Returns the stderr of the command.
std::string stderr_on_a_small_disk(const std::string& command,
                                   const std::string& disk, int& code) {
  std::filesystem::create_directory(disk);
  return output_of(
      "exec 3>&1; space=-m; unshare -m true 2>/dev/null || space=-rm; "
      "unshare $space sh -c 'mount -t tmpfs -o size=4k none " +
          disk + " || exit " + std::to_string(kNoMount) + "; " + command +
          " >" + disk + "/log 2>&3'",
      code);
}

TEST(FullDisk, EndsARunThatFillsItWithACheckpoint) {
  for (const std::string strategy : {"single", "ddp"}) {
    const TemporaryFolder folder;
    const std::string devices = strategy == "ddp" ? "2xcpu" : "cpu";
    int code = -1;
    const std::string text = stderr_on_a_small_disk(
        kProgram + joined(train_words({"--max-steps", "100000", "--strategy",
                                       strategy, "--devices", devices,
                                       "--out-dir", folder.path("run")})),
        folder.path("disk"), code);
    if (code == kNoMount) GTEST_SKIP() << "no file system can be mounted";
    EXPECT_EQ(code, kExitFailed) << text;
    EXPECT_PRED2(contains, text, folder.path("disk/log"));
    EXPECT_PRED2(contains, text, "No space left on device");
    const auto saved = list_checkpoints(folder.path("run"));
    ASSERT_EQ(saved.size(), 1u) << text;
    EXPECT_GT(saved.front().step, 5);
  }
}

TEST(FullDisk, EndsAJobWithAMessageAndNotAsPreempted) {
  int code = -1;
  const std::string text =
      output_of("exec 3>&1; (" + kJob + " >/dev/full 2>&3)", code);
  EXPECT_EQ(code, kExitFailed) << text;
  EXPECT_PRED2(contains, text,
               "can't write /dev/full: No space left on device");
  EXPECT_PRED2(contains, text, "the workers saved what they need to continue");
  EXPECT_FALSE(contains(text, "preempted")) << text;
}

TEST(FullDisk, FailsACommandWhoseOutputIsLost) {
  for (const char* command : {"--version", "help", "split --batch-size 4"}) {
    int code = -1;
    const std::string text = output_of(
        "exec 3>&1; (" + kProgram + " " + command + " >/dev/full 2>&3)", code);
    EXPECT_EQ(code, kExitFailed) << command;
    EXPECT_PRED2(contains, text, "can't write /dev/full");
  }
}

TEST(ClosedOutput, OfAProgramThatNeverHadOneIsNoError) {
  int code = -1;
  const std::string text = output_of("(" + kProgram + " --version >&-)", code);
  EXPECT_EQ(code, kExitDone) << text;
}

TEST(ClosedOutput, EndsAJobAsSigpipeDoesEvenIfItsWorkersSaved) {
  const TemporaryFolder folder;
  int code = -1;
  output_of("{ " + kJob + "; echo $? >" + folder.path("code") + "; } | head -1",
            code);
  EXPECT_EQ(content_of(folder.path("code")),
            std::to_string(kReaderGone) + "\n");
}

}  // namespace
}  // namespace lockstep::full_disk_test
