#include "lockstep/tools/comparison/comparison.h"

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/median.h"
#include "tests/base/is_error.h"
#include "tests/tools/canned.h"

namespace lockstep::tools {
namespace {

// Returns two rounds. In the second, the machine is half as fast for all
// strategies.
Comparison drifting() {
  Comparison comparison;
  const auto add = [&](const char* engine, const char* strategy,
                       double step_s) {
    comparison.runs.push_back(
        pool(engine,
             {canned_round(strategy, {step_s, step_s, step_s}),
              canned_round(strategy, {2 * step_s, 2 * step_s, 2 * step_s})}));
  };
  add(kLockstep, "single", 0.030);
  add(kLockstep, "dp", 0.020);
  add(kPyTorch, "single", 0.036);
  add(kPyTorch, "ddp", 0.050);
  comparison.rounds = 2;
  comparison.steps = 3;
  relate(comparison);
  return comparison;
}

double ratio(const Comparison& comparison, const std::string& name) {
  for (const auto& [key, value] : comparison.ratios) {
    if (key == name) return value.times;
  }
  ADD_FAILURE() << "no ratio " << name;
  return 0;
}

TEST(Median, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({}), 0);
}

TEST(Pool, TakesTheStepsOfAllRounds) {
  const auto run = pool(kLockstep, {canned_round("dp", {0.010, 0.012}),
                                    canned_round("dp", {0.030, 0.014})});
  EXPECT_DOUBLE_EQ(run.report.step_time_s.median, 0.013);
  EXPECT_DOUBLE_EQ(run.report.step_time_s.min, 0.010);
  // numpy.percentile([10, 12, 30, 14], [10, 90]) is [10.6, 25.2].
  EXPECT_NEAR(run.report.step_time_s.p10, 0.0106, 1e-12);
  EXPECT_NEAR(run.report.step_time_s.p90, 0.0252, 1e-12);
  EXPECT_EQ(run.round_medians_s, (std::vector<double>{0.011, 0.022}));
  EXPECT_DOUBLE_EQ(run.report.total_time_s, (0.022 + 0.044) / 2);
  EXPECT_DOUBLE_EQ(run.report.samples_per_s, 64 / 0.013);
}

TEST(Pool, TakesTheMedianRoundOfDevices) {
  auto first = canned_round("dp", {0.01});
  auto second = first, third = first;
  first.report.devices[1].busy_fraction = 0.2;
  second.report.devices[1].busy_fraction = 0.5;
  third.report.devices[1].busy_fraction = 0.9;
  const auto run = pool(kLockstep, {first, second, third});
  EXPECT_DOUBLE_EQ(run.report.devices[1].busy_fraction, 0.5);
}

// The medians of phases would not add up to the step.
TEST(Pool, KeepsPhasesThatAddUpToTheMeanStep) {
  auto first = canned_round("dp", {0.010, 0.012});
  auto second = canned_round("dp", {0.030});
  second.report.phases_s.reduce = 0.003;
  const auto run = pool(kLockstep, {first, second}).report;
  EXPECT_NEAR(run.phases_s.reduce, 0.001, 1e-12);
  ASSERT_TRUE(outside_phases(run));
  EXPECT_NEAR(total(run.phases_s) + *outside_phases(run), run.step_time_s.mean,
              1e-12);
}

TEST(OutsidePhases, IsNotKnownOfPhasesLongerThanTheStep) {
  auto report = canned_round("dp", {0.010}).report;
  EXPECT_NEAR(outside_phases(report).value(), 0.001, 1e-12);
  report.phases_s.reduce = 0.001;
  EXPECT_NEAR(outside_phases(report).value(), 0, 1e-12);
  report.phases_s.reduce = 0.002;
  EXPECT_FALSE(outside_phases(report));
  const auto comparison = compare_runs({report});
  ASSERT_EQ(comparison.notes.size(), 1u);
  EXPECT_NE(
      comparison.notes[0].find("11.0 ms together, but its mean step 10.0"),
      std::string::npos)
      << comparison.notes[0];
}

TEST(Pool, RefusesNoRounds) {
  EXPECT_THROW(pool(kLockstep, {}), InvalidArgument);
}

TEST(Ratios, AreNotMovedByAMachineThatDrifts) {
  const auto comparison = drifting();
  EXPECT_NEAR(ratio(comparison, "dp_vs_single"), 1.5, 1e-12);
  EXPECT_NEAR(ratio(comparison, "dp_vs_pytorch_single"), 1.8, 1e-12);
  EXPECT_NEAR(ratio(comparison, "dp_vs_pytorch_ddp"), 2.5, 1e-12);
  EXPECT_NEAR(ratio(comparison, "single_vs_pytorch_single"), 1.2, 1e-12);
}

TEST(Ratios, FallBackToMediansWhereTheRoundsDiffer) {
  const auto fast = pool(kLockstep, {canned_round("dp", {0.01})});
  const auto slow = pool(kLockstep, {canned_round("single", {0.02}),
                                     canned_round("single", {0.04})});
  const SpeedRatio ratio = speed_over(fast, slow, 0.95);
  EXPECT_NEAR(ratio.times, 3, 1e-12);
  EXPECT_FALSE(ratio.interval);
}

TEST(Speedup, RefersToLockstepsSingle) {
  const auto comparison = drifting();
  ASSERT_TRUE(comparison.baseline);
  EXPECT_EQ(*comparison.baseline, 0u);
  EXPECT_NEAR(comparison.runs[0].speedup.value().times, 1, 1e-12);
  EXPECT_NEAR(comparison.runs[3].speedup.value().times, 0.6, 1e-12);
}

TEST(Speedup, RefersToTheFirstRunWithoutASingle) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("dp-classic", {0.02})}),
                     pool(kLockstep, {canned_round("dp", {0.01})})};
  relate(comparison);
  EXPECT_EQ(comparison.baseline, 0u);
  EXPECT_NEAR(comparison.runs[1].speedup.value().times, 2, 1e-12);
}

TEST(ComparisonJson, HoldsWhatScriptsReadOfIt) {
  const nlohmann::json json = to_json(drifting());
  ASSERT_EQ(json["runs"].size(), 4u);
  const auto& run = json["runs"][1];
  EXPECT_EQ(run["engine"], "lockstep");
  EXPECT_EQ(run["strategy"], "dp");
  EXPECT_EQ(run["model"], "mlp");
  EXPECT_EQ(run["batch_size"], 64);
  EXPECT_EQ(run["split"], (std::vector<int>{32, 32}));
  for (const char* key : {"median", "min", "p10", "p90", "mean"}) {
    EXPECT_TRUE(run["step_time_s"][key].is_number()) << key;
  }
  EXPECT_NEAR(run["speedup"].get<double>(), 1.5, 1e-12);
  EXPECT_NEAR(run["speedup_interval"]["low"].get<double>(), 1.5, 1e-9);
  EXPECT_TRUE(json["runs"][0]["speedup_interval"].is_null());
  EXPECT_NEAR(json["ratio_intervals"]["dp_vs_single"]["high"].get<double>(),
              1.5, 1e-9);
  double phases_s = 0;
  for (const auto& [name, seconds] : run["phases_s"].items()) {
    phases_s += seconds.get<double>();
  }
  EXPECT_NEAR(phases_s, run["step_time_s"]["mean"].get<double>(), 1e-12);
  EXPECT_EQ(run["devices"][1]["name"], "cpu:1");
  EXPECT_TRUE(run["phases_s"].contains("replicate"));
  EXPECT_EQ(json["runs"][3]["engine"], "pytorch");
  EXPECT_NEAR(json["ratios"]["dp_vs_pytorch_ddp"].get<double>(), 2.5, 1e-12);
  EXPECT_EQ(json["rounds"], 2);
  EXPECT_EQ(json["steps"], 3);
  EXPECT_TRUE(json["machine"]["cores"].is_number());
}

TEST(MeasurementJson, ComesBackAsItWas) {
  const auto sent = canned_round("dp", {0.25, 0.125});
  const auto got = measurement_from_json(to_json(sent));
  EXPECT_EQ(got.step_times_s, sent.step_times_s);
  EXPECT_EQ(got.report.strategy, "dp");
  EXPECT_EQ(got.report.devices.size(), 2u);
}

TEST(MeasurementJson, NamesWhatIsMissing) {
  nlohmann::json json = to_json(canned_round("dp", {0.25}));
  json.erase("step_times_s");
  try {
    measurement_from_json(json);
    FAIL() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_TRUE(
        is_error(error.what(), ErrorCode::kMalformedData, {"step_times_s"}));
  }
  json["step_times_s"] = {"fast"};
  EXPECT_THROW(measurement_from_json(json), IoError);
}

TEST(CompareRuns, NumbersRunsOfTheSameStrategy) {
  const auto report = canned_round("dp", {0.01}).report;
  const auto comparison = compare_runs({report, report});
  EXPECT_EQ(comparison.runs[0].label(), "dp");
  EXPECT_EQ(comparison.runs[1].label(), "dp #2");
  EXPECT_TRUE(comparison.notes.empty());
}

TEST(CompareRuns, NamesRunsOfTheSameStrategyByTheirFolders) {
  const auto dp = canned_round("dp", {0.01}).report;
  const auto ddp = canned_round("ddp", {0.01}).report;
  const auto labels_of = [&](const std::vector<std::string>& paths) {
    std::vector<std::string> labels;
    const auto comparison =
        compare_runs({dp, dp, ddp}, DifferentWork::kRefused, paths);
    for (const auto& run : comparison.runs) labels.push_back(run.label());
    return labels;
  };
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels_of({"runs/warm/run.json", "runs/cold/", "runs/other"}),
            (Labels{"dp (warm)", "dp (cold)", "ddp"}));
  EXPECT_EQ(labels_of({"warm.json", "cold.json", "ddp.json"}),
            (Labels{"dp (warm)", "dp (cold)", "ddp"}));
  EXPECT_EQ(labels_of({"a/run", "b/run", "c"}), (Labels{"dp", "dp #2", "ddp"}));
}

// A change in the work of a step.
struct Change {
  std::string message;
  std::function<void(training::RunReport&)> make;
};

std::vector<Change> changes_of_work() {
  return {
      {"model mlp and resnet18", [](auto& run) { run.model = "resnet18"; }},
      {"parameters 6307850 and 5", [](auto& run) { run.parameters = 5; }},
      {"batch_size 64 and 65", [](auto& run) { run.batch_size = 65; }},
      {"tokens_of_sample 8 and 9", [](auto& run) { run.tokens_of_sample = 9; }},
      {"precision fp32 and bf16", [](auto& run) { run.precision = "bf16"; }}};
}

training::RunReport known_work(const std::string& strategy) {
  auto report = canned_round(strategy, {0.01}).report;
  report.tokens_of_sample = 8;
  report.precision = "fp32";
  return report;
}

TEST(CompareRuns, RefusesDifferentWorkAndNamesBothValues) {
  for (const auto& [message, change] : changes_of_work()) {
    auto other = known_work("dp");
    change(other);
    try {
      compare_runs({known_work("single"), other}, DifferentWork::kRefused,
                   {"a/run.json", "b/run.json"});
      FAIL() << message;
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(is_error(
          error.what(), ErrorCode::kBadOption,
          {"a/run.json", "b/run.json", message, "--allow-different-work"}))
          << error.what();
    }
  }
}

TEST(CompareRuns, GivesNoSpeedupAcrossDifferentWork) {
  for (const auto& [message, change] : changes_of_work()) {
    auto other = known_work("dp");
    change(other);
    const auto comparison =
        compare_runs({known_work("single"), other, known_work("ddp")},
                     DifferentWork::kAllowed);
    EXPECT_FALSE(comparison.runs[1].speedup) << message;
    EXPECT_TRUE(comparison.runs[2].speedup) << message;
    ASSERT_EQ(comparison.ratios.size(), 1u) << message;
    EXPECT_EQ(comparison.ratios[0].first, "ddp_vs_single");
    ASSERT_EQ(comparison.notes.size(), 1u);
    EXPECT_NE(comparison.notes[0].find(message), std::string::npos);
  }
}

TEST(CompareRuns, TakesHowTheWorkIsDoneForNoDifference) {
  auto other = known_work("dp");
  other.shards = 4;
  other.world_size = 4;
  other.steps = 100;
  other.precision = "";  // from an older version, which did not record it
  EXPECT_TRUE(compare_runs({known_work("single"), other}).notes.empty());
}

TEST(Machine, NamesItsProcessor) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_FALSE(machine.cpu_model.empty());
}

}  // namespace
}  // namespace lockstep::tools
