// `lockstep run --max-restarts` with programs that fail. Ranks that are killed
// are in tools/fault_table.
// Tier: full, by case. Each case restarts workers.
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/stopwatch.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::restart_test {
namespace {

using Words = std::vector<std::string>;

// Returns `lockstep run --nproc-per-node 2 options -- sh -c script`.
Words sh(const Words& options, const std::string& script) {
  Words words{"run", "--nproc-per-node", "2"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return words;
}

// Returns a script in which rank 1 fails until attempt `attempt`. It then
// prints "done N".
std::string fails_until(int attempt) {
  return "if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt " +
         std::to_string(attempt) +
         " ]; then echo boom >&2; exit 3; fi; "
         "echo done $TORCHELASTIC_RESTART_COUNT";
}

TEST(Restart, StartsAllAgainUntilTheyEndWell) {
  const TemporaryFolder folder;
  const Ended ended =
      run_lockstep(sh({"--max-restarts", "3", "--log-dir", folder.path("logs")},
                      fails_until(2)));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "[rank 0] done 2\n");
  EXPECT_PRED2(contains, ended.out, "[rank 1] done 2\n");
  EXPECT_PRED2(contains, ended.err,
               "exit code 3; all workers start again (restart 1");
  EXPECT_PRED2(contains, ended.err, "[launch] 2 failures survived\n");
  EXPECT_EQ(count_of(ended.err, "all ran again"), 2) << ended.err;
  const auto run = *std::filesystem::directory_iterator(folder.path("logs"));
  EXPECT_EQ(content_of(run.path() / "attempt_1/1/stderr.log"), "boom\n");
  EXPECT_EQ(content_of(run.path() / "attempt_2/1/stderr.log"), "");
}

TEST(Restart, EndsWithTheReportWhenThereAreNoneLeft) {
  const Ended ended = run_lockstep(sh({"--max-restarts", "1"}, fails_until(9)));
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "[launch] 1 failure survived\n");
  const auto report = ended.err.find("[launch] the job failed\n");
  ASSERT_NE(report, std::string::npos) << ended.err;
  EXPECT_PRED2(contains, ended.err.substr(report), "root cause: rank 1");
}

TEST(Restart, ASignalEndsTheWaitBeforeIt) {
  Program program(sh({"--max-restarts", "99"},
                     "echo attempt $TORCHELASTIC_RESTART_COUNT ready; exit 3"));
  // By then, it waits for 4 s or more before each attempt.
  ASSERT_TRUE(program.wait_for_output("attempt 3"));
  const Stopwatch watch;
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_LT(watch.seconds(), 30);
  EXPECT_PRED2(contains, program.err(), "the job was ended: the agent on ");
}

TEST(Restart, AllNodesStartAgain) {
  const std::string port = free_port();
  const auto node = [&](int rank) {
    return sh({"--max-restarts", "2", "--nnodes", "2", "--node-rank",
               std::to_string(rank), "--master-addr", "127.0.0.1",
               "--master-port", port},
              "if [ $RANK = 3 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then "
              "exit 3; fi; echo done $TORCHELASTIC_RESTART_COUNT $RANK; "
              "[ $RANK = 0 ] || sleep 1");
  };
  Program first(node(0));
  Program second(node(1));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  for (const char* rank : {"0", "1"}) {
    EXPECT_PRED2(contains, first.out(), std::string("done 1 ") + rank);
  }
  EXPECT_PRED2(contains, second.out(), "done 1 3");
  for (const Program* program : {&first, &second}) {
    EXPECT_PRED2(contains, program->err(), "rank 3 on ");
    EXPECT_PRED2(contains, program->err(), "1 failure survived");
  }
}

TEST(Restart, WhatFailsAtTheSameStepEachTimeEnds) {
  const Ended ended = run_lockstep({"run",
                                    "--nproc-per-node",
                                    "2",
                                    "--max-restarts",
                                    "9",
                                    "--",
                                    kProgram,
                                    "train",
                                    "--model",
                                    "mlp",
                                    "--data",
                                    "synthetic",
                                    "--lr",
                                    "1e30",
                                    "--schedule",
                                    "constant",
                                    "--shards",
                                    "2",
                                    "--max-steps",
                                    "60",
                                    "--batch-size",
                                    "32",
                                    "--no-eval"});
  EXPECT_EQ(ended.code, kExitTrainingFailed);
  EXPECT_PRED2(contains, ended.err,
               "no further restart: it failed 3 times in a");
  expect_problem(ended.err, ErrorCode::kNotFinite, {});
}

TEST(Restart, TwoRunsOfOneScriptDoNotTakeEachOthersState) {
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
}  // namespace lockstep::restart_test
