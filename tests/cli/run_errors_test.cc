// Tests the messages of `lockstep run` for jobs that can't start, and malicious
// workers.
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "tests/base/expect_problem.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::run_errors_test {
namespace {

TEST(RunErrors, AHostileErrorFileDoesNoHarm) {
  const auto ended = run_sh(
      {},
      "printf '{\"message\": \"\\\\u001b]0;owned\\\\u0007\", \"timestamp\": "
      "-5}' >$TORCHELASTIC_ERROR_FILE; exit 1");
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "?]0;owned?");
  EXPECT_EQ(ended.err.find('\x1b'), std::string::npos);
  const auto pipe = run_sh({}, "mkfifo $TORCHELASTIC_ERROR_FILE; exit 2");
  EXPECT_PRED2(contains, pipe.err, "exit code 2");
}

TEST(RunErrors, BadUsageOfAWorkerEndsTheJobWithoutARestart) {
  const auto ended = run_sh({"--nproc-per-node", "2", "--max-restarts", "3"},
                            "echo began; [ $RANK = 1 ] && exit 2; sleep 60");
  EXPECT_EQ(ended.code, kExitBadUsage) << ended.err;
  EXPECT_LE(count_of(ended.out, "began"), 2);
  EXPECT_PRED2(contains, ended.err, "no restart");
  EXPECT_FALSE(contains(ended.err, "restart 1 of 3")) << ended.err;
}

// Also if the worker that is seen to end first only missed that worker.
TEST(RunErrors, BadUsageEndsTheJobEvenIfItIsSeenLast) {
  const auto ended = run_sh(
      {"--nproc-per-node", "2", "--max-restarts", "3"},
      "echo began; if [ $RANK = 0 ]; then "
      "until [ -e ${TORCHELASTIC_ERROR_FILE%/0/*}/1/error.json ]; do "
      "sleep 0.05; done; printf '{\"message\": {\"message\": "
      "\"rank 1 ended\", \"extraInfo\": {\"lost_peer\": true}}}' "
      ">$TORCHELASTIC_ERROR_FILE; exit 1; fi; trap 'exit 2' TERM; "
      "printf '{\"message\": \"a bad option\"}' >$TORCHELASTIC_ERROR_FILE; "
      "while :; do sleep 0.05; done");
  EXPECT_EQ(ended.code, kExitBadUsage) << ended.err;
  EXPECT_LE(count_of(ended.out, "began"), 2);
}

TEST(RunErrors, OptionsThatConflictAreRefusedBeforeRanksStart) {
  const std::vector<std::vector<std::string>> conflicts{
      {"--on-spike", "roll-back"},
      {"--local-steps", "4", "--checkpoint-every", "3"},
      {"--local-steps", "4", "--shards", "3"},
      {"--local-steps", "4", "--zero", "1"},
      {"--save-best", "loss:most", "--out-dir", "unused"}};
  for (const auto& conflict : conflicts) {
    std::vector<std::string> words{"train",     "--strategy", "ddp",
                                   "--devices", "2xcpu",      "--max-steps",
                                   "1",         "--model",    "mlp"};
    words.insert(words.end(), conflict.begin(), conflict.end());
    const auto ended = run_lockstep(words);
    EXPECT_EQ(ended.code, kExitBadUsage) << conflict.front() << ended.err;
    EXPECT_FALSE(contains(ended.err, "[launch]")) << ended.err;
  }
}

TEST(RunErrors, DevicesWithoutARankAreRefused) {
  const auto ended = run_lockstep(
      {"run", "--nproc-per-node", "1", "--max-restarts", "3", "--", kProgram,
       "train", "--strategy", "ddp", "--devices", "2xcpu", "--max-steps", "1"});
  EXPECT_EQ(ended.code, kExitBadUsage);
  EXPECT_PRED2(contains, ended.err, "--nproc-per-node 2");
}

TEST(RunErrors, ASingleTaskOfAnotherLauncherStartsItsRanks) {
  for (const std::map<std::string, std::string>& launcher :
       {std::map<std::string, std::string>{{"SLURM_STEP_ID", "0"},
                                           {"SLURM_PROCID", "0"},
                                           {"SLURM_STEP_NUM_TASKS", "1"}},
        {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}}) {
    const auto ended = run_lockstep(
        {"train", "--model", "mlp", "--strategy", "ddp", "--devices", "2xcpu",
         "--batch-size", "8", "--max-steps", "1", "--no-eval"},
        launcher);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_PRED2(contains, ended.out, "in 2 shards");
  }
}

TEST(RunErrors, APortInUseIsNamed) {
  launch::Endpoint endpoint{"127.0.0.1", 0};
  const auto socket = launch::listen_at(endpoint);
  const auto ended =
      run_sh({"--master-port", std::to_string(endpoint.port)}, "echo ran");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "");
  expect_problem(ended.err, ErrorCode::kCannotListen, {endpoint.text()});
}

TEST(RunErrors, ANodeThatNeverComesIsNotWaitedForForEver) {
  const std::string port = free_port();
  for (const std::string rank : {"0", "1"}) {
    const auto ended =
        run_sh({"--nnodes", "2", "--node-rank", rank, "--master-port", port,
                "--rdzv-conf", "join_timeout=0.5"},
               "echo ran");
    EXPECT_EQ(ended.code, 1);
    EXPECT_EQ(ended.out, "");
    expect_problem(ended.err,
                   rank == "0" ? ErrorCode::kRendezvousFailed
                               : ErrorCode::kStoreUnreachable,
                   {"join_timeout"});
  }
}

TEST(RunErrors, ASignalEndsTheWaitForNodes) {
  launch::Endpoint endpoint{"127.0.0.1", 0};
  launch::listen_at(endpoint).clear();
  Program program(
      sh_job({"--nnodes", "2", "--master-port", std::to_string(endpoint.port)},
             "echo ran"));
  ASSERT_TRUE(wait_until([&] { return launch::is_reachable(endpoint, 1000); }));
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT);
}

}  // namespace
}  // namespace lockstep::run_errors_test
