#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/report/pytorch_peer.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::compare_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

// A comparison as small as one can be, but for what `more` says.
Arguments compare(const Arguments& more) {
  Arguments all{"compare"};
  const std::vector<std::pair<std::string, std::string>> defaults{
      {"--model", "mlp"}, {"--batch-size", "8"}, {"--steps", "2"},
      {"--warmup", "1"},  {"--rounds", "1"},     {"--devices", "cpu:2"},
  };
  for (const auto& [option, value] : defaults) {
    if (std::find(more.begin(), more.end(), option) != more.end()) continue;
    all.insert(all.end(), {option, value});
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

// How many processes were started with `word` among their arguments.
int processes_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line;
    while (std::getline(file, line, '\0')) {
      if (line == word) {
        ++count;
        break;
      }
    }
  }
  return count;
}

bool all_end(const std::string& word, double deadline_s) {
  const Stopwatch watch;
  while (processes_with(word) > 0) {
    if (watch.seconds() > deadline_s) return false;
    ::usleep(10'000);
  }
  return true;
}

// Ends the comparison with SIGTERM once `count` processes do its work.
CommandResult interrupt_when(const Arguments& arguments,
                             const std::string& word, int count) {
  Command command;
  command.arguments = {kProgram};
  command.arguments.insert(command.arguments.end(), arguments.begin(),
                           arguments.end());
  command.deadline_s = 240;
  command.stop = [&] { return processes_with(word) >= count; };
  return run_command(command);
}

// No other process has it among its arguments.
std::string rare_number() { return "77" + std::to_string(::getpid()) + "01"; }

TEST(Compare, MeasuresEveryStrategyInTheOrderGiven) {
  const TemporaryFolder folder;
  const auto report = folder.path("cmp.json");
  const Ended ended = run_lockstep(
      compare({"--strategies", "single,dp-classic,dp", "--rounds", "2",
               "--report", report, "--html", folder.path("x.html"), "--svg",
               folder.path("x.svg")}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = read_json(report);
  ASSERT_EQ(result["runs"].size(), 3u);
  EXPECT_EQ(result["runs"][0]["strategy"], "single");
  EXPECT_EQ(result["runs"][1]["strategy"], "dp-classic");
  EXPECT_EQ(result["runs"][0]["split"], json::parse("[8]"));
  for (const auto& run : result["runs"]) {
    EXPECT_EQ(run["engine"], "lockstep");
    EXPECT_EQ(run["parameters"], 6307850);
    EXPECT_EQ(run["round_medians_s"].size(), 2u);
    EXPECT_GT(run["step_time_s"]["min"].get<double>(), 0);
    EXPECT_GE(run["step_time_s"]["median"], run["step_time_s"]["min"]);
    EXPECT_GT(run["phases_s"]["backward"].get<double>(), 0);
  }
  for (const int parallel : {1, 2}) {
    const auto& run = result["runs"][parallel];
    EXPECT_EQ(run["split"], json::parse("[4, 4]"));
    ASSERT_EQ(run["devices"].size(), 2u);
    EXPECT_EQ(run["devices"][1]["samples"], 2 * 4) << "warm-up is left out";
  }
  EXPECT_TRUE(result["ratios"].contains("dp_vs_single"));
  EXPECT_PRED2(contains, ended.out, "Speed-up");
  EXPECT_PRED2(contains, ended.out, "dp-classic");
  EXPECT_PRED2(contains, ended.err, "[compare] dp, round 2 of 2");
  EXPECT_TRUE(std::filesystem::exists(folder.path("x.html")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("x.svg")));
}

TEST(Compare, SuggestsTheNearestStrategy) {
  const Ended ended =
      run_lockstep(compare({"--strategies", "single,dp-clasic"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_PRED2(contains, ended.err, "dp-clasic");
  EXPECT_PRED2(contains, ended.err, "did you mean 'dp-classic'");
}

TEST(Compare, ShowsTheLastLineOfAProcessThatFails) {
  // One shard for two devices: what only the process itself finds out.
  const Ended ended =
      run_lockstep(compare({"--strategies", "dp", "--shards", "1"}));
  EXPECT_EQ(ended.code, 1) << ended.err;
  expect_problem(ended.err, ErrorCode::kPeerProcess, {"dp", "exit code 2"});
  expect_problem(ended.err, ErrorCode::kBadOption, {"cpu:0, cpu:1"});
}

TEST(Compare, EndsAProcessThatIsLate) {
  const Ended ended = run_lockstep(compare(
      {"--strategies", "single", "--steps", "1000000", "--timeout", "0.5"}));
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kPeerProcess, {"0.5 s", "--timeout"});
}

TEST(Compare, LeavesNoProcessBehindWhenInterrupted) {
  const std::string seed = rare_number();
  // Two have it: compare itself, and the process that it started.
  const auto result = interrupt_when(
      compare({"--strategies", "dp", "--steps", "1000000", "--seed", seed}),
      seed, 2);
  EXPECT_EQ(result.end, CommandResult::End::kStopped) << result.err;
  EXPECT_TRUE(all_end(seed, 20)) << processes_with(seed) << " are left";
  expect_problem(result.err, ErrorCode::kInterrupted, {"dp"});
}

TEST(SlowCompare, LeavesNoRankOfPyTorchBehindWhenInterrupted) {
  if (const auto peer = report::find_pytorch(); !peer.missing.empty()) {
    GTEST_SKIP() << peer.missing;
  }
  const std::string seed = rare_number();
  // compare, the launcher and its two ranks, which are seen from their start.
  // What comes before them takes few steps, to end on a busy machine as well.
  const auto result =
      interrupt_when(compare({"--strategies", "single", "--pytorch", "--steps",
                              "40", "--seed", seed}),
                     seed, 4);
  EXPECT_EQ(result.end, CommandResult::End::kStopped) << result.err;
  EXPECT_TRUE(all_end(seed, 30)) << processes_with(seed) << " are left";
}

TEST(SlowCompare, TimesPyTorchOnTheSameWork) {
  if (const auto peer = report::find_pytorch(); !peer.missing.empty()) {
    GTEST_SKIP() << peer.missing;
  }
  const TemporaryFolder folder;
  const auto report = folder.path("cmp.json");
  const Ended ended = run_lockstep(
      compare({"--strategies", "single,dp", "--pytorch", "--report", report}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = read_json(report);
  ASSERT_EQ(result["runs"].size(), 4u);
  EXPECT_EQ(result["runs"][2]["engine"], "pytorch");
  EXPECT_EQ(result["runs"][3]["strategy"], "ddp");
  EXPECT_EQ(result["runs"][2]["parameters"], result["runs"][0]["parameters"]);
  for (const char* name : {"dp_vs_single", "dp_vs_pytorch_single",
                           "dp_vs_pytorch_ddp", "single_vs_pytorch_single"}) {
    EXPECT_GT(result["ratios"].at(name).get<double>(), 0) << name;
  }
}

TEST(Compare, SaysWhyPyTorchIsLeftOut) {
  const char* before = std::getenv("LOCKSTEP_PYTHON");
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("LOCKSTEP_PYTHON", "/no/python", 1);
  const Ended ended =
      run_lockstep(compare({"--strategies", "single", "--pytorch"}));
  if (before == nullptr) {
    ::unsetenv("LOCKSTEP_PYTHON");
  } else {
    ::setenv("LOCKSTEP_PYTHON", saved.c_str(), 1);
  }
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.err, "PyTorch was left out");
  EXPECT_PRED2(contains, ended.err, "/no/python");
}

TEST(Compare, ComparesFinishedRuns) {
  const TemporaryFolder folder;
  Arguments runs{"compare", "--runs"};
  for (const std::string strategy : {"single", "dp"}) {
    runs.push_back(folder.path(strategy + ".json"));
    const Ended trained = run_lockstep(
        {"train", "--model", "mlp", "--strategy", strategy, "--devices",
         strategy == "dp" ? "cpu:2" : "cpu", "--max-steps", "3", "--no-eval",
         "--report", runs.back()});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  const Ended ended = run_lockstep(runs);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "finished training runs");
  EXPECT_PRED2(contains, ended.out, "Speed-up");
  EXPECT_PRED2(contains, ended.out, "cpu:1");
}

TEST(Compare, NamesAFileThatIsNoRun) {
  const TemporaryFolder folder;
  const auto path = folder.path("run.json");
  std::ofstream(path) << "{\"lockstep\": \"0.1.0\"}";
  const Ended ended = run_lockstep({"compare", "--runs", path});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kMalformedJson, {path, "'command'"});
  EXPECT_EQ(run_lockstep({"compare", "--runs", folder.path("none")}).code, 1);
}

TEST(Compare, RefusesToMeasureAndReadAtOnce) {
  const Ended ended =
      run_lockstep({"compare", "--runs", "run.json", "--strategies", "single"});
  EXPECT_EQ(ended.code, 2) << ended.err;
}

TEST(Compare, FindsOutFirstThatItCantWrite) {
  const Ended ended =
      run_lockstep(compare({"--report", "/no/such/folder/cmp.json"}));
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kFileAccess, {"/no/such/folder"});
  EXPECT_FALSE(contains(ended.err, "round 1")) << ended.err;
}

TEST(StepTime, IsHiddenFromHelp) {
  EXPECT_FALSE(contains(run_lockstep({"--help"}).out, "step-time"));
}

}  // namespace
}  // namespace lockstep::compare_test
