// Tier: nightly, by case. A tool.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "tests/base/busy_process.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"
#include "tests/tools/cli/comparisons.h"

namespace lockstep::compare_test {
namespace {

using namespace comparisons;  // NOLINT

// Fails if a phase is null, which means that it is not known.
double sum_of(const json& phases) {
  double sum = 0;
  for (const auto& [name, seconds] : phases.items()) {
    EXPECT_TRUE(seconds.is_number()) << name;
    EXPECT_GE(seconds, 0) << name;
    if (seconds.is_number()) sum += seconds.get<double>();
  }
  return sum;
}

TEST(Compare, MeasuresEveryStrategyInTheOrderGiven) {
  const TemporaryFolder folder;
  const auto report = folder.path("cmp.json");
  const Ended ended = run_lockstep(
      compare({"--strategies", "single,dp-classic,dp,ddp", "--rounds", "2",
               "--details", "--report", report, "--html", folder.path("x.html"),
               "--svg", folder.path("x.svg")}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = read_json(report);
  ASSERT_EQ(result["runs"].size(), 4u);
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
    EXPECT_LE(run["step_time_s"]["p10"], run["step_time_s"]["median"]);
    EXPECT_LE(run["step_time_s"]["median"], run["step_time_s"]["p90"]);
    // For every strategy, including those with ranks, the phases add up to the
    // step.
    EXPECT_NEAR(sum_of(run["phases_s"]),
                run["step_time_s"]["mean"].get<double>(), 1e-9)
        << run["phases_s"];
  }
  for (const int parallel : {1, 2}) {
    const auto& run = result["runs"][parallel];
    EXPECT_EQ(run["split"], json::parse("[4, 4]"));
    ASSERT_EQ(run["devices"].size(), 2u);
    EXPECT_EQ(run["devices"][1]["samples"], 2 * 4) << "warm-up is left out";
  }
  // Seven layers: a product each forward, and two backward except for the
  // gradient of the input.
  const std::vector<int> products{20, 40, 40, 40};
  for (size_t i = 0; i < result["runs"].size(); ++i) {
    const json& limit = result["runs"][i]["limit"];
    ASSERT_TRUE(limit.is_object()) << i;
    EXPECT_EQ(limit["products"], products[i]);
    EXPECT_EQ(limit["flops"],
              2. * 8 * (6 * 3 * 1024 * 1024 + 3 * 10240 - 1024 * 1024));
    EXPECT_NEAR(sum_of(limit["parts_s"]), limit["step_s"].get<double>(), 1e-9);
    for (const char* key :
         {"share", "products_alone_s", "bytes", "bytes_per_s", "memory_s"}) {
      EXPECT_GT(limit[key], 0) << key;
    }
  }
  EXPECT_PRED2(contains, ended.out, "Share of the limit");
  EXPECT_PRED2(contains, ended.out, "limit: products alone");
  EXPECT_TRUE(result["ratios"].contains("dp_vs_single"));
  EXPECT_TRUE(result["ratio_intervals"]["dp_vs_single"]["low"].is_number());
  EXPECT_EQ(result["rounds"], 2);
  EXPECT_EQ(result["machine_load"]["other_cores_of_rounds"].size(), 2u);
  EXPECT_PRED2(contains, ended.out, "Speed-up");
  EXPECT_PRED2(contains, ended.out, "dp-classic");
  // One line for the warm-up and one for each of two rounds, with the time
  // left.
  EXPECT_PRED2(contains, ended.err, "[compare] warm-up\n");
  EXPECT_PRED2(contains, ended.err, "[compare] round 1 of 2, about ");
  EXPECT_PRED2(contains, ended.err, "[compare] round 2 of 2, about ");
  EXPECT_EQ(count_of(ended.err, "[compare] round"), 2) << ended.err;
  EXPECT_TRUE(std::filesystem::exists(folder.path("x.html")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("x.svg")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("x-narrow.svg")));
}

TEST(Compare, MeasuresLoopsThatUsersWrite) {
  const TemporaryFolder folder;
  const auto report = folder.path("cmp.json");
  const std::vector<std::string> loops{"dp-loop", "dp-loop-unfused", "ddp-loop",
                                       "ddp-loop-unfused"};
  const Ended ended = run_lockstep(compare(
      {"--strategies", "dp-loop,dp-loop-unfused,ddp-loop,ddp-loop-unfused",
       "--rounds", "1", "--report", report}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = read_json(report);
  ASSERT_EQ(result["runs"].size(), loops.size());
  for (size_t i = 0; i < loops.size(); ++i) {
    const auto& run = result["runs"][i];
    EXPECT_EQ(run["strategy"], loops[i]);
    EXPECT_GT(run["phases_s"]["update"].get<double>(), 0);
  }
}

TEST(Compare, SuggestsTheNearestStrategy) {
  const Ended ended =
      run_lockstep(compare({"--strategies", "single,dp-clasic"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_PRED2(contains, ended.err, "dp-clasic");
  EXPECT_PRED2(contains, ended.err, "did you mean 'dp-classic'");
}

TEST(Compare, ShowsTheLastLineOfAProcessThatFails) {
  // One shard for two devices, which only the process itself can detect.
  const Ended ended =
      run_lockstep(compare({"--strategies", "dp", "--shards", "1"}));
  EXPECT_EQ(ended.code, 1) << ended.err;
  expect_problem(ended.err, ErrorCode::kProcessStart,
                 {"dp", "exit code 2", "last line: 1 shard can't be shared"});
}

TEST(Compare, EndsAProcessThatIsLate) {
  const Ended ended = run_lockstep(compare(
      {"--strategies", "single", "--steps", "1000000", "--timeout", "0.5"}));
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kProcessStart, {"0.5 s", "--timeout"});
}

TEST(Compare, LeavesNoProcessBehindWhenInterrupted) {
  const std::string seed = rare_number();
  // Two processes have it: compare itself, and the process that it started.
  const auto result = interrupt_when(
      compare({"--strategies", "dp", "--steps", "1000000", "--seed", seed}),
      seed, 2);
  EXPECT_EQ(result.end, CommandResult::End::kStopped) << result.err;
  EXPECT_TRUE(all_end(seed, 20)) << processes_with(seed) << " are left";
  expect_problem(result.err, ErrorCode::kInterrupted, {"dp"});
}

TEST(Compare, MeasuresNothingWithoutThePyTorchThatWasAskedFor) {
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
  EXPECT_EQ(ended.code, 1) << ended.err;
  expect_problem(ended.err, ErrorCode::kProcessStart,
                 {"/no/python", "LOCKSTEP_PYTHON"});
  EXPECT_EQ(ended.out, "");
}

TEST(Compare, ComparesFinishedRuns) {
  const TemporaryFolder folder;
  Arguments runs{"compare", "--runs"};
  for (const std::string strategy : {"single", "dp"}) {
    runs.push_back(folder.path(strategy + ".json"));
    const Ended trained = run_lockstep(
        {"train", "--model", "mlp", "--strategy", strategy, "--devices",
         strategy == "dp" ? "2xcpu" : "cpu", "--max-steps", "3", "--no-eval",
         "--report", runs.back()});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  const Ended ended = run_lockstep(runs);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "finished training runs");
  EXPECT_PRED2(contains, ended.out, "Speed-up");
  EXPECT_PRED2(contains, ended.out, "cpu:1");
}

// Trains three steps at that batch size. Returns the run.json.
std::string trained(const TemporaryFolder& folder, const std::string& batch) {
  const std::string path = folder.path("of_" + batch + ".json");
  const Ended ended =
      run_lockstep({"train", "--model", "mlp", "--strategy", "single",
                    "--devices", "cpu", "--max-steps", "3", "--no-eval",
                    "--batch-size", batch, "--report", path});
  EXPECT_EQ(ended.code, 0) << ended.err;
  return path;
}

TEST(Compare, KnowsTheModelsThatTrainKnows) {
  for (const char* model : {"gpt-nano", "llama-char"}) {
    const Ended ended =
        run_lockstep({"compare", "--model", model, "--batch-size", "2",
                      "--devices", "cpu", "--strategies", "single", "--steps",
                      "1", "--warmup", "0", "--rounds", "1"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_PRED2(contains, ended.out, model);
  }
  const Ended refused =
      run_lockstep({"compare", "--model", "llama-char", "--batch-size", "2",
                    "--devices", "cpu", "--pytorch"});
  EXPECT_EQ(refused.code, 2);
  expect_problem(refused.err, ErrorCode::kBadOption,
                 {"llama-char", "--pytorch"});
}

TEST(Compare, RefusesRunsOfDifferentWorkUnlessAsked) {
  const TemporaryFolder folder;
  const std::string small = trained(folder, "8"), large = trained(folder, "16");
  const Ended refused = run_lockstep({"compare", "--runs", small, large});
  EXPECT_EQ(refused.code, 2) << refused.out;
  expect_problem(
      refused.err, ErrorCode::kBadOption,
      {small, large, "batch_size 8 and 16", "--allow-different-work"});
  EXPECT_EQ(refused.out, "");

  const std::string report = folder.path("cmp.json");
  const Ended allowed =
      run_lockstep({"compare", "--allow-different-work", "--report", report,
                    "--runs", small, large});
  ASSERT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_PRED2(contains, allowed.out, "did different work (batch_size 8 and");
  EXPECT_FALSE(contains(allowed.out, "times as fast")) << allowed.out;
  const json result = read_json(report);
  EXPECT_TRUE(result["runs"][1]["speedup"].is_null());
  EXPECT_TRUE(result["ratios"].empty());
  EXPECT_EQ(result["runs"][0]["precision"], "fp32");
  EXPECT_NEAR(sum_of(result["runs"][0]["phases_s"]),
              result["runs"][0]["step_time_s"]["mean"].get<double>(), 1e-9);
}

TEST(Compare, AllowsDifferentWorkOfRunsAlone) {
  EXPECT_EQ(run_lockstep(compare({"--allow-different-work"})).code, 2);
}

TEST(Compare, RefusesFewerRoundsAtMostThanAtLeast) {
  const Ended ended =
      run_lockstep(compare({"--rounds", "4", "--max-rounds", "3"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_PRED2(contains, ended.err, "--max-rounds");
}

TEST(Compare, ComparesDdpAmongOthersWithoutBeingAsked) {
  EXPECT_PRED2(contains, run_lockstep({"compare", "--help"}).out,
               "single,dp-classic,dp,ddp");
}

TEST(Compare, WarnsOnABusyMachine) {
  const TemporaryFolder folder;
  const std::string report = folder.path("cmp.json");
  const std::vector<BusyProcess> busy(allowed_cores().size());
  const Ended ended =
      run_lockstep(compare({"--strategies", "single", "--steps", "10",
                            "--rounds", "2", "--report", report}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = read_json(report);
  if (result["machine_load"].is_null()) {
    GTEST_SKIP() << "this system has no /proc/stat of its cores";
  }
  EXPECT_TRUE(result["machine_load"]["is_busy"].get<bool>());
  EXPECT_GT(result["machine_load"]["other_cores"].get<double>(), 0.3);
  const size_t warned = ended.err.find("[compare] the machine is busy");
  ASSERT_NE(warned, std::string::npos) << ended.err;
  EXPECT_LT(warned, ended.err.find("[compare] warm-up")) << ended.err;
  EXPECT_PRED2(contains, ended.err, "Other processes used");
  EXPECT_PRED2(contains, ended.out, "- Other processes used");
  ASSERT_EQ(result["notes"].size(), 1u);
}

TEST(Compare, NamesAFileThatIsNoRun) {
  const TemporaryFolder folder;
  const auto path = folder.path("run.json");
  std::ofstream(path) << "{\"lockstep\": \"0.1.0\"}";
  const Ended ended = run_lockstep({"compare", "--runs", path});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kMalformedData, {path, "'command'"});
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
