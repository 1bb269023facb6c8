// Workers are lost while `lockstep train` runs. The other workers wait, and all
// of them continue from memory.
// Tier: nightly, by case. Each case loses ranks of a program.
#include <csignal>
#include <filesystem>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::recovery_test {
namespace {

using Words = std::vector<std::string>;

const std::string kFaultyProgram = LOCKSTEP_BINARY_DIR "/bin/faulty_lockstep";

// Nothing is written to a disk.
Words training(const Words& agent, const Words& options,
               const std::string& steps = "60",
               const std::string& program = kProgram) {
  Words words{"run", "--nproc-per-node", "2", "--max-restarts", "9"};
  words.insert(words.end(), agent.begin(), agent.end());
  words.insert(words.end(),
               {"--", program, "train", "--strategy", "ddp", "--model", "mlp",
                "--data", "synthetic", "--shards", "2", "--batch-size", "32",
                "--max-steps", steps, "--no-eval", "--log-every", "1"});
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

std::string quiet_digest() {
  static const std::string digest =
      digest_in(run_lockstep(training({}, {})).out);
  return digest;
}

pid_t worker(const Program& program, int rank) {
  return worker_of(program.pid(), rank);
}

// Waits for the new worker, which takes a moment to start.
pid_t wait_for_worker(const Program& program, int rank) {
  wait_until([&] { return worker(program, rank) > 0; });
  return worker(program, rank);
}

class Recovery : public testing::TestWithParam<std::string> {};

TEST_P(Recovery, OnlyTheKilledRankStartsAgain) {
  for (const int killed : {0, 1}) {
    // Snapshots are made at the steps where the ranks compared their state.
    Program program(
        training({}, {"--backend", GetParam(), "--verify-every", "1"}));
    ASSERT_TRUE(program.wait_for_output("step 8/60")) << program.err();
    const pid_t other = worker(program, 1 - killed);
    ::kill(worker(program, killed), SIGKILL);
    ASSERT_TRUE(program.wait_for_output("resumed from memory"))
        << program.err();
    EXPECT_EQ(worker(program, 1 - killed), other);
    EXPECT_EQ(program.wait(), 0) << program.err();
    EXPECT_EQ(digest_in(program.out()), quiet_digest());
    EXPECT_PRED2(contains, program.err(),
                 "1 starts again, 1 waits for it (restart 1 of 9)");
    EXPECT_PRED2(contains, program.err(), "[launch] 1 failure survived\n");
    // At most the current step is lost.
    EXPECT_TRUE(contains(program.err(), ", 0 steps lost") ||
                contains(program.err(), ", 1 step lost"))
        << program.err();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Recovery, testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST(RecoveryOf, ManyKillsLeavesNoTraceInTheBits) {
  Program program(training({}, {}));
  int kills = 0;
  for (const char* moment : {"step 5/60", "step 20/60", "step 40/60"}) {
    ASSERT_TRUE(program.wait_for_output(moment)) << program.err();
    ::kill(wait_for_worker(program, ++kills % 2), SIGKILL);
  }
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
  EXPECT_PRED2(contains, program.err(), "[launch] 3 failures survived\n");
}

TEST(RecoveryOf, AllRanksAtOnceGoesOnFromMemory) {
  Program program(training({}, {}));
  ASSERT_TRUE(program.wait_for_output("step 8/60")) << program.err();
  for (const int rank : {0, 1}) ::kill(worker(program, rank), SIGKILL);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.out(), "resumed from memory: step ");
  EXPECT_PRED2(contains, program.err(), "all workers start again");
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

TEST(RecoveryOf, ASurvivorThatCanOpenNothingReplacesItToo) {
  Program program(training({}, {}));
  ASSERT_TRUE(program.wait_for_output("step 8/60")) << program.err();
  const pid_t survivor = worker(program, 0);
  const rlimit standard_files{.rlim_cur = 3, .rlim_max = 3};
  ASSERT_EQ(::prlimit(survivor, RLIMIT_NOFILE, &standard_files, nullptr), 0);
  ::kill(worker(program, 1), SIGKILL);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
  EXPECT_PRED2(contains, program.err(),
               "Too many open files (this process may have 3 open)");
  EXPECT_PRED2(contains, program.err(), "rank 0 on ");
  EXPECT_PRED2(contains, program.err(), "(restart 2 of 9)");
  EXPECT_PRED2(contains, program.err(), "[launch] 2 failures survived\n");
}

// A kill proves nothing about the program.
TEST(RecoveryOf, KillsAtTheSameStepAreNoFaultOfTheProgram) {
  const TemporaryFolder folder;
  const auto fired = folder.path("fired");
  Program program(training({}, {}, "60", kFaultyProgram),
                  {{"LOCKSTEP_FAULT", "kill@backward:step=6:rank=1"},
                   {"LOCKSTEP_FAULT_FOLDER", folder.path()}});
  for (int kill = 1; kill <= 4; ++kill) {
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(fired); }));
    // The fault also hits the next process, at the same place.
    if (kill < 4) std::filesystem::remove(fired);
  }
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.err(), "[launch] 4 failures survived\n");
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

TEST(RecoveryOf, AJobWithRareSnapshotsRepeatsTheStepsSince) {
  Program program(training({}, {"--snapshot-every", "7"}));
  ASSERT_TRUE(program.wait_for_output("step 12/60")) << program.err();
  ::kill(worker(program, 0), SIGKILL);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_TRUE(contains(program.out(), "resumed from memory: step 7 ") ||
              contains(program.out(), "resumed from memory: step 14 "))
      << program.out();
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

TEST(RecoveryOf, AStoppedRankTellsWhereItHangs) {
  Program program(training({"--hang-timeout", "2"}, {}));
  ASSERT_TRUE(program.wait_for_output("step 8/60")) << program.err();
  ::kill(worker(program, 1), SIGSTOP);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.err(), "the threads of rank 1 when it was");
  EXPECT_PRED2(contains, program.err(), "hung for ");
  EXPECT_PRED2(contains, program.err(), "(the process is stopped");
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

TEST(RecoveryOf, WhatFailsAtTheSameStepEachTimeEnds) {
  const Ended ended =
      run_lockstep(training({}, {"--lr", "1e30", "--schedule", "constant"}));
  EXPECT_EQ(ended.code, kExitTrainingFailed);
  EXPECT_PRED2(contains, ended.err,
               "no further restart: it failed 3 times in a");
  expect_problem(ended.err, ErrorCode::kNotFinite, {});
}

TEST(RecoveryOf, TwoRunsOfOneScriptDoNotTakeEachOthersState) {
  const std::string train = kProgram +
                            " train --model mlp --data synthetic --batch-size "
                            "32 --max-steps 5 --no-eval --lr ";
  const auto last_digest = [](const std::string& script) {
    const Ended ended =
        run_lockstep({"run", "--max-restarts", "1", "--", "sh", "-c", script});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_FALSE(contains(ended.out, "resumed from memory")) << ended.out;
    return digest_in(ended.out.substr(ended.out.rfind("parameter_sha256")));
  };
  EXPECT_EQ(last_digest(train + "0.1; " + train + "0.2"),
            last_digest(train + "0.2"));
}

}  // namespace
}  // namespace lockstep::recovery_test
