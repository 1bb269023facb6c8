// Two runs with the same --out-dir.
// Tier: full, by case. Each case starts the program twice.
#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/host_identity.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/ddp_runs.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::two_runs_test {
namespace {

using ddp_runs::Words;

Words run_in(const std::string& folder, const std::string& steps) {
  return ddp_runs::train_words({"--out-dir", folder, "--resume", "auto",
                                "--max-steps", steps, "--checkpoint-every", "2",
                                "--schedule", "constant"});
}

Words with_ranks(Words words) {
  words.insert(words.end(), {"--strategy", "ddp", "--devices", "2xcpu"});
  return words;
}

TEST(TwoRuns, TheSecondIsRefusedUntilTheFirstIsGone) {
  const TemporaryFolder folder;
  const Words words = run_in(folder.path("run"), "100000");
  Program first(with_ranks(words));
  ASSERT_TRUE(first.wait_for_output("step 6/")) << first.err();
  const pid_t owner = worker_of(first.pid(), 0);
  for (const Words& again : {words, with_ranks(words)}) {
    const auto second = run_lockstep(again);
    EXPECT_EQ(second.code, kExitFailed) << second.out;
    expect_problem(second.err, ErrorCode::kResumeConflict,
                   {folder.path("run"), host_name(),
                    "process " + std::to_string(owner) + " "});
  }
  // Other commands only read the folder.
  EXPECT_EQ(run_lockstep({"eval", "--checkpoint", folder.path("run")}).code,
            kExitDone);
  first.send(SIGKILL);
  Program third(words);
  EXPECT_TRUE(third.wait_for_output("resumed from")) << third.err();
  third.send(SIGTERM);
  EXPECT_EQ(third.wait(), kExitPreempted) << third.err();
}

}  // namespace
}  // namespace lockstep::two_runs_test
