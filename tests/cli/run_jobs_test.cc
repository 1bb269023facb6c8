// `lockstep run` with much output, slow readers and whole jobs.
// Tier: full, by case. Each case starts a whole job.
#include <csignal>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::run_jobs_test {
namespace {

TEST(RunOutput, NeverMixesLines) {
  constexpr int kLines = 3000;
  const std::string script =
      "i=0; while [ $i -lt 3000 ]; do "
      "echo $RANK $i abcdefghijklmnopqrstuvwxyz; i=$((i+1)); done";
  const auto ended = run_sh({"--nproc-per-node", "8"}, script);
  ASSERT_EQ(ended.code, 0) << ended.err;
  std::map<std::string, int> next;
  for (const auto& line : lines_of(ended.out)) {
    std::istringstream words(line);
    std::string bracket, label, rank, tail;
    int number = 0;
    words >> bracket >> label >> rank >> number >> tail;
    ASSERT_EQ(label, rank + "]") << line;
    ASSERT_EQ(number, next[rank]++) << line;
    ASSERT_EQ(tail, "abcdefghijklmnopqrstuvwxyz") << line;
  }
  EXPECT_EQ(next.size(), 8u);
  for (const auto& [rank, count] : next) EXPECT_EQ(count, kLines) << rank;
}

TEST(RunOutput, LosesNothingToASlowReader) {
  const auto result = run_command(
      {.arguments = {"sh", "-c",
                     "\"$LOCKSTEP\" run --nproc-per-node 2 -- seq 200000 | "
                     "{ sleep 2; sort | uniq -c | grep -c '^ *1 '; }"},
       .environment = {{"LOCKSTEP", kProgram}},
       .deadline_s = 120});
  EXPECT_EQ(result.out, "400000\n") << result.err;
}

TEST(RunOutput, EndsWhenNobodyReadsItAnyMore) {
  const TemporaryFolder folder;
  const auto result = run_command(
      {.arguments = {"sh", "-c",
                     "{ \"$LOCKSTEP\" run --nproc-per-node 2 -- yes; "
                     "echo $? >$OUT; } | head -n 1"},
       .environment = {{"LOCKSTEP", kProgram}, {"OUT", folder.path("code")}},
       .deadline_s = 60});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_EQ(content_of(folder.path("code")), "141\n");
}

TEST(RunJobs, RunsTwoJobsAtOnce) {
  Program one(
      sh_job({"--nproc-per-node", "2"}, "echo $MASTER_PORT; exec sleep 600"));
  ASSERT_TRUE(one.wait_for_output("[rank 1] "));
  const auto other = run_sh({"--nproc-per-node", "2"}, "echo $MASTER_PORT");
  EXPECT_EQ(other.code, 0) << other.err;
  one.send(SIGTERM);
  EXPECT_EQ(one.wait(), 128 + SIGTERM);
  std::set<std::string> ports;
  for (const auto& line : lines_of(one.out() + other.out)) {
    ports.insert(line.substr(line.find(']') + 2));
  }
  EXPECT_EQ(ports.size(), 2u);
}

TEST(RunJobs, RunsAJobOfALockstepProgram) {
  const TemporaryFolder folder;
  const Ended ended =
      run_lockstep({"run", "--log-dir", folder.path("logs"), "--", kProgram,
                    "train", "--model", "mlp", "--max-steps", "x"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_PRED2(contains, ended.err, "exit code 2");
  EXPECT_PRED2(contains, ended.err,
               "message  lockstep::cli::BadUsage: [usage]");
  const auto root = nlohmann::json::parse(
      content_of(only_entry(folder.path("logs")) / "attempt_0/0/error.json"));
  EXPECT_TRUE(root["message"]["message"].is_string());
}

}  // namespace
}  // namespace lockstep::run_jobs_test
