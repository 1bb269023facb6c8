// What `lockstep run` says of jobs that cannot start, and of hostile workers.
#include <csignal>
#include <string>

#include <gtest/gtest.h>

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
