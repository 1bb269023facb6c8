// The recipes for Slurm's queue, with a real Slurm.
// Tier: nightly, by case, 2 cores. It runs a real Slurm.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"

namespace lockstep {
namespace {

constexpr int kNotInstalled = 77;

// Runs a recipe and applies `command` to the job in the middle of its steps.
// Expects that the outcome is one of `facts`.
void expect(const std::string& recipe, const std::vector<std::string>& command,
            const std::vector<std::string>& facts) {
  const std::string source = LOCKSTEP_SOURCE_DIR;
  std::vector<std::string> words{"python3",
                                 source + "/tests/comm/launchers/slurm.py",
                                 source + "/tests/cli/slurm_requeue.py",
                                 LOCKSTEP_BINARY_DIR "/bin/lockstep", recipe};
  words.insert(words.end(), command.begin(), command.end());
  const auto result = run_command({.arguments = words, .deadline_s = 250});
  if (result.exit_code == kNotInstalled) GTEST_SKIP() << "no Slurm";
  EXPECT_TRUE(std::find(facts.begin(), facts.end(), result.out) != facts.end())
      << result.out << result.err;
}

TEST(Slurm, RequeuesAJobThatItWarned) {
  expect("train", {"scancel", "--signal=USR1"},
         {"state COMPLETED restarts 1\njob was preempted\n"
          "resumed from\ndigest of a quiet run\n"});
}

TEST(Slurm, RequeuesAJobWhoseScriptItWarned) {
  expect("no_srun", {"scancel", "--batch", "--signal=USR1"},
         {"state COMPLETED restarts 1\njob was preempted\n"
          "resumed from\ndigest of a quiet run\n"});
}

TEST(Slurm, RequeuesRanksThatItStartedItself) {
  expect("ranks", {"scancel", "--signal=TERM"},
         {"state COMPLETED restarts 1\n"
          "resumed from\ndigest of a quiet run\n"});
}

// In about one of fifty runs, Slurm kills the ranks of a job that it requeues
// before they have reported the request to end, or saved anything. Then they
// resume from the previous checkpoint.
TEST(Slurm, RequeuesAJobByCommand) {
  expect("train", {"scontrol", "requeue"},
         {"state COMPLETED restarts 1\njob was preempted\n"
          "resumed from\ndigest of a quiet run\n",
          "state COMPLETED restarts 1\n"
          "resumed from\ndigest of a quiet run\n"});
}

// With every recipe, the job does not come back without a new submission.
TEST(Slurm, CancelsAJobThatGoesOnWhenSubmittedAgain) {
  for (const char* recipe : {"train", "no_srun"}) {
    expect(recipe, {"scancel"},
           {"state CANCELLED restarts 0\nagain COMPLETED\njob was preempted\n"
            "resumed from\ndigest of a quiet run\n"});
  }
}

}  // namespace
}  // namespace lockstep
