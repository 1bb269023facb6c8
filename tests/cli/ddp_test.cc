// `lockstep train --strategy ddp`: as processes, under every launcher, and with
// real failures.
// Tier: full, by case. Each case starts the program.
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/train/run/run_lock.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/ddp_runs.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::ddp_test {
namespace {

using namespace ddp_runs;  // NOLINT

/// Returns two ranks under `lockstep run` that print their pids and run
/// forever.
Words endless(const Words& more) {
  Words words = ddp_words({"--devices", "2xcpu", "--max-steps", "1000000"});
  words.insert(words.end(), more.begin(), more.end());
  return {"run",
          "--nproc-per-node",
          "2",
          "--label-lines",
          "off",
          "--",
          "sh",
          "-c",
          "echo pid $$ rank $RANK; exec " + kProgram + joined(words)};
}

pid_t pid_of_rank(const std::string& out, int rank) {
  const auto end = out.find(" rank " + std::to_string(rank));
  const auto begin = out.rfind("pid ", end);
  return begin == std::string::npos ? -1 : std::stoi(out.substr(begin + 4));
}

TEST(Ddp, GivesTheBitsOfOneDevice) {
  const std::string single = single_digest();
  for (const char* backend : {"shm", "tcp"}) {
    Words words = ddp_words(kSixSteps);
    words.insert(words.end(), {"--devices", "2xcpu", "--backend", backend});
    const auto ended = run_lockstep(words);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(digest_in(ended.out), single) << backend;
  }
}

TEST(Ddp, GivesTheBitsOfOneDeviceUnderLockstepRun) {
  Words words{"run",   "--nproc-per-node", "2", "--label-lines", "off", "--",
              kProgram};
  const Words own = ddp_words({"--max-steps", "6", "--verbose-ranks"});
  words.insert(words.end(), own.begin(), own.end());
  const auto ended = run_lockstep(words);
  EXPECT_EQ(digest_in(ended.out), single_digest()) << ended.err;
  for (const char* line :
       {"Rank: 0 | Local rank: 0 | Device: cpu:0 | Batch: 16",
        "Rank: 1 | Local rank: 1 | Device: cpu:1 | Batch: 16"}) {
    EXPECT_PRED2(contains, ended.out, line);
  }
}

// Rank 0 has the folder, and rank 1 waits for rank 0.
TEST(Ddp, NamesTheFolderThatAnotherRunUsesOnEachRank) {
  const TemporaryFolder folder;
  const training::RunLock other(folder.path());
  Words words{"run", "--nproc-per-node", "2", "--", kProgram};
  const Words own = ddp_words({"--max-steps", "1", "--out-dir", folder.path()});
  words.insert(words.end(), own.begin(), own.end());
  const auto ended = run_lockstep(words);
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_FALSE(contains(ended.err, "collectives")) << ended.err;
  std::istringstream lines(ended.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[rank ")) {
      EXPECT_PRED2(contains, line, folder.path() + " is in use");
    }
  }
}

TEST(Ddp, RunsUnderMpirun) {
  int status = 0;
  if (::system("command -v mpirun >/dev/null") != 0) {
    GTEST_SKIP() << "no mpirun";
  }
  const std::string out = output_of(
      "mpirun --allow-run-as-root --oversubscribe --bind-to none "
      "-n 2 " +
          kProgram + joined(ddp_words(kSixSteps)),
      status);
  EXPECT_EQ(digest_in(out), single_digest()) << out;
}

TEST(Ddp, RunsUnderSrun) {
  int status = 0;
  const std::string out = output_of("timeout 200 python3 " LOCKSTEP_SOURCE_DIR
                                    "/tests/comm/launchers/slurm.py srun -n2 " +
                                        kProgram + joined(ddp_words(kSixSteps)),
                                    status);
  if (status == 77) GTEST_SKIP() << "no Slurm";
  EXPECT_EQ(digest_in(out), single_digest()) << out;
}

TEST(Ddp, CompressesGradientsWithPowerSgdAndGoesOnWithTheSameBits) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  for (const char* optimizer : {"sgd", "adamw"}) {
    const TemporaryFolder folder;
    const auto run = [&](const std::string& name, Words more) {
      more.insert(more.end(),
                  {"--max-steps", "8", "--devices", "2xcpu", "--optimizer",
                   optimizer, "--grad-compression", "powersgd", "--out-dir",
                   folder.path(name), "--checkpoint-every", "4"});
      const Ended ended = run_lockstep(ddp_words(more));
      EXPECT_EQ(ended.code, 0) << ended.err;
      return digest_in(ended.out);
    };
    const std::string whole = run("whole", {});
    EXPECT_EQ(run("rest", {"--resume", folder.path("whole/step-00000004")}),
              whole)
        << optimizer;
  }
}

// The optimizer state (SGD has a momentum of 0.9) must not be in memory that
// ranks of one host share, because with a hook each rank updates all
// parameters.
TEST(Ddp, LearnsWithPowerSgdAndMomentumOnOneHost) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const TemporaryFolder folder;
  const Words own{
      "--devices",          "2xcpu",    "--max-steps", "40",
      "--grad-compression", "powersgd", "--report",    folder.path("run.json")};
  const auto expect_to_learn = [&](const Ended& ended) {
    ASSERT_EQ(ended.code, 0) << ended.err;
    const auto losses =
        nlohmann::json::parse(content_of(folder.path("run.json")))["losses"]
            .get<std::vector<double>>();
    ASSERT_EQ(losses.size(), 40);
    const auto mean = [&](size_t first) {
      return std::accumulate(losses.begin() + first, losses.begin() + first + 5,
                             0.0) /
             5;
    };
    EXPECT_LT(mean(35), mean(0) - 0.5);
  };
  expect_to_learn(run_lockstep(ddp_words(own)));
  Words under_an_agent{"run", "--nproc-per-node", "2", "--", kProgram};
  const Words words = ddp_words(own);
  under_an_agent.insert(under_an_agent.end(), words.begin(), words.end());
  expect_to_learn(run_lockstep(under_an_agent));
}

// In network namespaces, ranks don't try shared memory. Over Gloo, each shard
// is computed with one thread, as on one host.
TEST(Ddp, GivesTheBitsOfOneHostOnTwo) {
  const Words own = ddp_words(
      {"--max-steps", "6", "--intra-op-threads", "1", "--verbose-ranks"});
  int status = 0;
  const std::string out =
      output_of(LOCKSTEP_SOURCE_DIR "/tests/cli/two_hosts.sh " + kProgram +
                    " -- " + kProgram + joined(own),
                status);
  if (status == 77) GTEST_SKIP() << "can't make network namespaces: " << out;
  EXPECT_EQ(digest_in(out), single_digest()) << out;
  EXPECT_PRED2(contains, out, "Rank: 0 | Local rank: 0 |");
}

TEST(DdpFaults, AKilledRankEndsTheRun) {
  for (const char* backend : {"shm", "tcp"}) {
    Program program(endless({"--backend", backend}));
    ASSERT_TRUE(program.wait_for_output("step 3/")) << program.err();
    const pid_t victim = pid_of_rank(program.out(), 1);
    const pid_t other = pid_of_rank(program.out(), 0);
    ::kill(victim, SIGKILL);
    EXPECT_EQ(program.wait(), 1);
    EXPECT_PRED2(contains, program.err(), "root cause: rank 1");
    EXPECT_PRED2(contains, program.err(), "SIGKILL");
    EXPECT_TRUE(is_gone(victim) && is_gone(other));
  }
}

TEST(DdpFaults, AStoppedRankIsNamedAtTheTimeout) {
  Program program(endless({"--timeout", "5"}));
  ASSERT_TRUE(program.wait_for_output("step 3/")) << program.err();
  const pid_t victim = pid_of_rank(program.out(), 1);
  ::kill(victim, SIGSTOP);
  EXPECT_EQ(program.wait(), 1);
  EXPECT_PRED2(contains, program.err(),
               "pid " + std::to_string(victim) + ") did not come to ");
  EXPECT_PRED2(contains, program.err(), "SIGSTOP");
  EXPECT_TRUE(is_gone(victim));
}

TEST(DdpFaults, ARankThatNeverComesIsWaitedForNoLongerThanAsked) {
  const auto ended =
      run_lockstep(ddp_words({"--max-steps", "1", "--timeout", "2"}),
                   {{"RANK", "0"},
                    {"WORLD_SIZE", "2"},
                    {"LOCAL_RANK", "0"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", free_port()}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "of rank 1");
}

TEST(DdpFaults, TwoJobsAtOnceDoNotMeet) {
  Words words = ddp_words(kSixSteps);
  words.insert(words.end(), {"--devices", "2xcpu"});
  Program first(words);
  Program second(words);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(digest_in(first.out()), digest_in(second.out()));
}

TEST(DdpFaults, AFullDevShmIsNoObstacle) {
  int status = 0;
  const std::string out = output_of(
      "unshare -m sh -c 'mount -t tmpfs -o size=4k tmpfs /dev/shm || exit 77; "
      "dd if=/dev/zero of=/dev/shm/full bs=4k count=1 2>/dev/null; exec " +
          kProgram +
          joined(ddp_words({"--devices", "2xcpu", "--max-steps", "6"})) + "'",
      status);
  if (status == 77) GTEST_SKIP() << "can't mount a small /dev/shm";
  EXPECT_EQ(digest_in(out), single_digest()) << out;
}

TEST(DdpFaults, CtrlCEndsAllRanksAfterTheirStep) {
  Program program(ddp_words({"--devices", "2xcpu", "--max-steps", "1000000"}));
  ASSERT_TRUE(program.wait_for_output("step 3/")) << program.err();
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 130) << program.err();
}

}  // namespace
}  // namespace lockstep::ddp_test
