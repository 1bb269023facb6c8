// `lockstep run --max-restarts` with real failures.
// Tier: full, by case. Each case restarts workers.
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/stopwatch.h"
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

// Returns the arguments for a training run with two ranks under `lockstep run`.
Words training(const std::string& out_dir) {
  return {"run",
          "--nproc-per-node",
          "2",
          "--max-restarts",
          "5",
          "--",
          kProgram,
          "train",
          "--strategy",
          "ddp",
          "--model",
          "mlp",
          "--data",
          "synthetic",
          "--shards",
          "2",
          "--batch-size",
          "32",
          "--max-steps",
          "150",
          "--no-eval",
          "--log-every",
          "1",
          "--checkpoint-every",
          "4",
          "--resume",
          "auto",
          "--out-dir",
          out_dir};
}

std::string quiet_digest() {
  static const std::string digest = [] {
    const TemporaryFolder folder;
    return digest_in(run_lockstep(training(folder.path("run"))).out);
  }();
  return digest;
}

pid_t last_worker_of(const Program& program) {
  const auto workers = children_of(program.pid(), "lockstep");
  if (workers.empty()) throw std::runtime_error("there is no worker");
  return workers.back();
}

TEST(Restart, AKilledRankLeavesNoTraceInTheBits) {
  const TemporaryFolder folder;
  Program program(training(folder.path("run")));
  for (const char* moment : {"step 6/150", "step 61/150"}) {
    ASSERT_TRUE(program.wait_for_output(moment)) << program.err();
    ::kill(last_worker_of(program), SIGKILL);
  }
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.err(), "2 failures survived");
  EXPECT_PRED2(contains, program.out(), "resumed from ");
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

TEST(Preemption, EndsWithItsOwnCodeAndGoesOn) {
  const TemporaryFolder folder;
  // Sent to the agent, and only to a rank, as Slurm may do.
  for (const int signal : {SIGTERM, SIGUSR1, -SIGUSR1}) {
    Program program(training(folder.path("run")));
    ASSERT_TRUE(program.wait_for_output(" | loss ")) << program.err();
    if (signal > 0) {
      program.send(signal);
    } else {
      ::kill(last_worker_of(program), -signal);
    }
    EXPECT_EQ(program.wait(), 75) << program.err();
    EXPECT_PRED2(contains, program.err(),
                 "the job was preempted, and can continue");
    EXPECT_FALSE(contains(program.err(), "start again")) << program.err();
  }
  const Ended last = run_lockstep(training(folder.path("run")));
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_PRED2(contains, last.out, "resumed from ");
  EXPECT_EQ(digest_in(last.out), quiet_digest());
}

}  // namespace
}  // namespace lockstep::restart_test
