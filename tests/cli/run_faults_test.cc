// `lockstep run` with real failures.
#include <csignal>
#include <map>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::run_faults_test {
namespace {

using Words = std::vector<std::string>;
using nlohmann::json;

const Words kTwo{"--nproc-per-node", "2"};

// Workers that run until they are ended. Each prints its pid, the pids of a
// child and of a child that hides in a separate session, and then "ready".
constexpr const char* kStay =
    "sleep 600 & echo pid $! child; setsid sleep 600 & echo pid $! hidden; "
    "echo pid $$ ready; wait";

void expect_all_gone(const std::string& text, size_t count) {
  const auto pids = pids_in(text);
  EXPECT_EQ(pids.size(), count) << text;
  for (const pid_t pid : pids) EXPECT_TRUE(is_gone(pid)) << pid << "\n" << text;
}

TEST(RunFaults, AFailureEndsTheOthersAndIsReportedLast) {
  const auto ended = run_sh(
      kTwo, std::string("if [ $RANK = 1 ]; then echo boom >&2; exit 3; fi; ") +
                kStay);
  EXPECT_EQ(ended.code, 1);
  const auto report = ended.err.find("[launch] the job failed\n");
  ASSERT_NE(report, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find("[rank", report), std::string::npos) << ended.err;
  EXPECT_PRED2(contains, ended.err, "root cause: rank 1 (local rank 1) on ");
  EXPECT_PRED2(contains, ended.err, "exit code 3");
  EXPECT_PRED2(contains, ended.err, "      boom\n");
  for (const pid_t pid : pids_in(ended.out)) EXPECT_TRUE(is_gone(pid));
}

TEST(RunFaults, AHangTimeoutSaysWhomItDoesNotWatch) {
  const std::string warning = "--hang-timeout does not watch ranks 0, 1:";
  Words options = kTwo;
  EXPECT_FALSE(contains(run_sh(options, "sleep 1").err, "does not watch"));
  options.insert(options.end(), {"--hang-timeout", "0.3"});
  const auto ended = run_sh(options, "sleep 2");
  EXPECT_EQ(ended.code, 0);
  const auto first = ended.err.find(warning);
  EXPECT_NE(first, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(warning, first + 1), std::string::npos);
}

TEST(RunFaults, AKilledWorkerIsTheCause) {
  const TemporaryFolder folder;
  Words options = kTwo;
  options.insert(options.end(), {"--log-dir", folder.path("logs")});
  Program program(sh_job(options, kStay),
                  {{"TORCHELASTIC_ERROR_FILE", folder.path("error.json")}});
  ASSERT_TRUE(program.wait_for_ready(2));
  const auto& out = program.out();
  const auto line = out.find(" ready");
  const auto victim =
      pids_in(out.substr(out.rfind("pid ", line), line)).front();
  ::kill(victim, SIGKILL);
  EXPECT_EQ(program.wait(), 1);
  const auto& err = program.err();
  EXPECT_PRED2(contains, err, "pid " + std::to_string(victim));
  EXPECT_PRED2(contains, err, "SIGKILL (Killed)");
  EXPECT_FALSE(contains(err, "other failures")) << err;
  expect_all_gone(out, 6);
  // torchrun's formats: in the worker's folder, and for a launcher that started
  // us.
  const auto root = json::parse(content_of(folder.path("error.json")));
  EXPECT_EQ(root["message"]["errorCode"], -SIGKILL);
  EXPECT_PRED2(contains, root["message"]["message"].get<std::string>(),
               "SIGKILL");
}

TEST(RunFaults, WhatHidesInAnotherSessionIsFoundToo) {
  const auto ended =
      run_sh(kTwo, "setsid sleep 600 & echo pid $!; (sleep 600 & echo pid $!)");
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_all_gone(ended.out, 4);
}

TEST(RunFaults, AStoppedWorkerIsEndedWhenAnotherFails) {
  const TemporaryFolder folder;
  const Stopwatch watch;
  const auto ended = run_sh(
      kTwo,
      "if [ $RANK = 0 ]; then echo $$ >$DIR/pid; echo pid $$; kill -STOP $$; "
      "sleep 600; fi; until grep -q ') T' /proc/$(cat $DIR/pid)/stat; "
      "do sleep 0.05; done 2>/dev/null; exit 4",
      {{"DIR", folder.path()}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "root cause: rank 1");
  EXPECT_PRED2(contains, ended.err, "exit code 4");
  expect_all_gone(ended.out, 1);
  EXPECT_LT(watch.seconds(), 30);
}

TEST(RunFaults, WhoIgnoresTheSignalIsKilledAfterTheGrace) {
  Words options = kTwo;
  options.insert(options.end(), {"--grace-seconds", "0.5"});
  const TemporaryFolder folder;
  const auto ended =
      run_sh(options,
             "if [ $RANK = 0 ]; then trap '' TERM; echo pid $$; : >$DIR/deaf; "
             "while :; do sleep 0.1; done; fi; "
             "until [ -e $DIR/deaf ]; do sleep 0.05; done; exit 5",
             {{"DIR", folder.path()}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "exit code 5");
  EXPECT_FALSE(contains(ended.err, "rank 0")) << ended.err;
  expect_all_gone(ended.out, 1);
}

TEST(RunFaults, ASignalIsPassedOnAndWaitedFor) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    Words options = kTwo;
    options.insert(options.end(),
                   {"--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1"});
    Program program(
        sh_job(options,
               "trap 'echo got it; exit 0' TERM INT USR1; echo ready; "
               "while :; do sleep 0.05; done"));
    ASSERT_TRUE(program.wait_for_ready(2));
    program.send(signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_PRED2(contains, program.out(), "[rank 0] got it\n");
    EXPECT_PRED2(contains, program.out(), "[rank 1] got it\n");
    EXPECT_PRED2(contains, program.err(),
                 "[launch] the job was ended: the "
                 "agent on ");
    EXPECT_FALSE(contains(program.err(), "root cause")) << program.err();
  }
}

TEST(RunFaults, ASecondSignalDoesNotWait) {
  Program program(sh_job(kTwo,
                         "trap 'echo deaf' INT; echo pid $$ ready; "
                         "while :; do sleep 0.05; done"));
  ASSERT_TRUE(program.wait_for_ready(2));
  const Stopwatch watch;
  program.send(SIGINT);
  ASSERT_TRUE(program.wait_for_output("deaf"));
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT);
  EXPECT_LT(watch.seconds(), 25);  // the grace period is 30 s
  expect_all_gone(program.out(), 2);
}

TEST(RunFaults, NobodyOutlivesAKilledAgent) {
  Program program(sh_job(kTwo,
                         "sleep 600 & echo pid $! child; echo pid $$ ready; "
                         "trap '' TERM HUP INT; wait"));
  ASSERT_TRUE(program.wait_for_ready(2));
  program.send(SIGKILL);
  EXPECT_EQ(program.wait(), -SIGKILL);
  expect_all_gone(program.out(), 4);
}

TEST(RunFaults, TheEarliestErrorFileIsTheRootCause) {
  const TemporaryFolder folder;
  // Rank 0 ends first because of rank 1. Rank 1 is still ending, and the agent
  // ends it.
  const auto ended = run_sh(
      kTwo,
      "now() { date +%s; }; if [ $RANK = 1 ]; then "
      "printf '{\"message\": {\"message\": \"the first\", \"extraInfo\": "
      "{\"py_callstack\": \"a\\\\nb\", \"timestamp\": \"%s\"}}}' $(now) "
      ">$TORCHELASTIC_ERROR_FILE; : >$DIR/wrote; sleep 600; fi; "
      "until [ -e $DIR/wrote ]; do sleep 0.05; done; exit 6",
      {{"DIR", folder.path()}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "root cause: rank 1");
  EXPECT_PRED2(contains, ended.err, "message  the first");
  EXPECT_PRED2(contains, ended.err, "      a\n      b\n");
  EXPECT_PRED2(contains, ended.err, "rank 0 on ");
  EXPECT_PRED2(contains, ended.err, "exit code 6");
}

TEST(RunFaults, WhoMissedAnotherRankIsNotTheRootCause) {
  const TemporaryFolder folder;
  // Rank 0 reports first that rank 1 was lost, and ends. Rank 1 gives its
  // reason only after the agent's signal.
  const auto ended = run_sh(
      kTwo,
      "say() { printf '{\"message\": {\"message\": \"%s\", \"extraInfo\": "
      "{\"timestamp\": \"%s\"%s}}}' \"$1\" $(date +%s) \"$2\" "
      ">$TORCHELASTIC_ERROR_FILE; }; "
      "if [ $RANK = 1 ]; then trap 'say no-memory; exit 1' TERM; : "
      ">$DIR/there; "
      "while :; do sleep 0.05; done; fi; "
      "until [ -e $DIR/there ]; do sleep 0.05; done; "
      "say missed-rank-1 ', \"lost_peer\": true'; exit 1",
      {{"DIR", folder.path()}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "root cause: rank 1");
  EXPECT_PRED2(contains, ended.err, "message  no-memory");
  EXPECT_PRED2(contains, ended.err, "exit code 1: missed-rank-1");
}

// Two nodes on this machine that meet through c10d.
class RunNodes : public testing::Test {
 protected:
  Words node(const std::string& script, Words more = {}) {
    more.insert(more.begin(),
                {"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                 endpoint_, "--rdzv-id", "two"});
    return sh_job(more, script);
  }

  // A node that arrives later finds the port taken, and does not serve the
  // store.
  void wait_for_store() {
    const auto endpoint = launch::parse_endpoint("", endpoint_, 0);
    ASSERT_TRUE(
        wait_until([&] { return launch::is_reachable(endpoint, 1000); }));
  }

 private:
  static std::string free_endpoint() {
    launch::Endpoint endpoint{"127.0.0.1", 0};
    launch::listen_at(endpoint).clear();
    return endpoint.text();
  }
  const std::string endpoint_ = free_endpoint();
};

TEST_F(RunNodes, CountRanksThrough) {
  const std::string script = "echo $GROUP_RANK/$LOCAL_RANK $RANK/$WORLD_SIZE";
  Program one(node(script, {"--nproc-per-node", "2", "--node-rank", "1"}));
  const auto other = run_lockstep(node(script, {"--node-rank", "0"}));
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(other.out, "[rank 0] 0/0 0/3\n");
  EXPECT_PRED2(contains, one.out(), "[rank 1] 1/0 1/3\n");
  EXPECT_PRED2(contains, one.out(), "[rank 2] 1/1 2/3\n");
}

TEST_F(RunNodes, EndTogetherAndNameTheSameCause) {
  const std::string script =
      "if [ $GROUP_RANK = 1 ]; then read -r x <$DIR/go; echo bad >&2; exit 7; "
      "fi; echo pid $$ ready; exec sleep 600";
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("go").c_str(), 0600), 0);
  const std::map<std::string, std::string> environment{{"DIR", folder.path()}};
  Program zero(node(script, {"--node-rank", "0"}), environment);
  Program one(node(script, {"--node-rank", "1"}), environment);
  ASSERT_TRUE(zero.wait_for_ready(1));
  write_text(folder.path("go"), "x\n");
  const Stopwatch watch;
  EXPECT_EQ(zero.wait(), 1);
  EXPECT_EQ(one.wait(), 1);
  EXPECT_LT(watch.seconds(), 20);
  for (const auto& err : {zero.err(), one.err()}) {
    EXPECT_PRED2(contains, err, "root cause: rank 1 (local rank 0) on ");
    EXPECT_PRED2(contains, err, "node 1");
    EXPECT_PRED2(contains, err, "exit code 7");
    EXPECT_PRED2(contains, err, "      bad\n");
  }
  expect_all_gone(zero.out(), 1);
}

TEST_F(RunNodes, EndWhenTheAgentWithTheStoreIsKilled) {
  Program zero(node("echo pid $$ ready; exec sleep 600"));
  wait_for_store();
  Program one(node("echo pid $$ ready; exec sleep 600"));
  ASSERT_TRUE(zero.wait_for_ready(1));
  ASSERT_TRUE(one.wait_for_ready(1));
  const Stopwatch watch;
  zero.send(SIGKILL);
  zero.wait();
  EXPECT_EQ(one.wait(), kExitPreempted);
  EXPECT_LT(watch.seconds(), 40);
  EXPECT_PRED2(contains, one.err(),
               "[launch] the job lost a node or its network, and can continue: "
               "lost the job's store at 127.0.0.1:");
  expect_all_gone(zero.out(), 1);
  expect_all_gone(one.out(), 1);
}

TEST_F(RunNodes, EndWhenTheAgentWithTheStoreIsFrozen) {
  const std::string script = "echo pid $$ ready; exec sleep 600";
  Program zero(node(script));
  wait_for_store();
  Program one(node(script));
  ASSERT_TRUE(zero.wait_for_ready(1));
  ASSERT_TRUE(one.wait_for_ready(1));
  const Stopwatch watch;
  zero.send(SIGSTOP);
  EXPECT_EQ(one.wait(), kExitPreempted);
  EXPECT_LT(watch.seconds(), 60);
  EXPECT_PRED2(contains, one.err(),
               "[launch] the job lost a node or its network, and can continue: "
               "lost the job's store at 127.0.0.1:");
  expect_all_gone(one.out(), 1);
  zero.send(SIGCONT);
  zero.send(SIGKILL);
  zero.wait();
  expect_all_gone(zero.out(), 1);
}

TEST_F(RunNodes, PassASignalOfOneOn) {
  Program zero(node("echo pid $$ ready; exec sleep 600"));
  Program one(node("echo pid $$ ready; exec sleep 600"));
  ASSERT_TRUE(zero.wait_for_ready(1));
  ASSERT_TRUE(one.wait_for_ready(1));
  one.send(SIGTERM);
  EXPECT_EQ(one.wait(), 128 + SIGTERM);
  EXPECT_EQ(zero.wait(), 1);
  EXPECT_PRED2(contains, zero.err(), "got SIGTERM");
  expect_all_gone(zero.out() + one.out(), 2);
}

}  // namespace
}  // namespace lockstep::run_faults_test
