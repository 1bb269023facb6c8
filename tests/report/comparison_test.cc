#include "lockstep/report/comparison.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/median.h"
#include "tests/base/is_error.h"
#include "tests/report/canned.h"

namespace lockstep::report {
namespace {

// Two rounds; the machine is half as fast in the second, for everyone.
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
    if (key == name) return value;
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
  EXPECT_EQ(run.round_medians_s, (std::vector<double>{0.011, 0.022}));
  EXPECT_DOUBLE_EQ(run.report.total_time_s, (0.022 + 0.044) / 2);
  EXPECT_DOUBLE_EQ(run.report.samples_per_s, 64 / 0.013);
}

TEST(Pool, TakesTheMedianRoundOfDevicesAndPhases) {
  auto first = canned_round("dp", {0.01});
  auto second = first, third = first;
  first.report.devices[1].busy_fraction = 0.2;
  second.report.devices[1].busy_fraction = 0.5;
  third.report.devices[1].busy_fraction = 0.9;
  first.report.phases_s.reduce = 0.3;
  second.report.phases_s.reduce = 0.1;
  third.report.phases_s.reduce = 0.2;
  const auto run = pool(kLockstep, {first, second, third});
  EXPECT_DOUBLE_EQ(run.report.devices[1].busy_fraction, 0.5);
  EXPECT_DOUBLE_EQ(run.report.phases_s.reduce, 0.2);
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
  EXPECT_NEAR(times_as_fast(fast, slow), 3, 1e-12);
}

TEST(Speedup, RefersToLockstepsSingle) {
  const auto comparison = drifting();
  ASSERT_TRUE(comparison.baseline);
  EXPECT_EQ(*comparison.baseline, 0u);
  EXPECT_NEAR(comparison.runs[0].speedup.value(), 1, 1e-12);
  EXPECT_NEAR(comparison.runs[3].speedup.value(), 0.6, 1e-12);
}

TEST(Speedup, RefersToTheFirstRunWithoutASingle) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("dp-classic", {0.02})}),
                     pool(kLockstep, {canned_round("dp", {0.01})})};
  relate(comparison);
  EXPECT_EQ(comparison.baseline, 0u);
  EXPECT_NEAR(comparison.runs[1].speedup.value(), 2, 1e-12);
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
  for (const char* key : {"median", "min", "p90", "mean"}) {
    EXPECT_TRUE(run["step_time_s"][key].is_number()) << key;
  }
  EXPECT_NEAR(run["speedup"].get<double>(), 1.5, 1e-12);
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
        is_error(error.what(), ErrorCode::kMalformedJson, {"step_times_s"}));
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

TEST(CompareRuns, SaysThatRunsOfDifferentWorkDontCompare) {
  const auto one = canned_round("single", {0.01}).report;
  auto other = canned_round("dp", {0.01}).report;
  other.model = "resnet18";
  const auto comparison = compare_runs({one, other});
  ASSERT_EQ(comparison.notes.size(), 1u);
  EXPECT_NE(comparison.notes[0].find("resnet18"), std::string::npos);
}

TEST(Machine, NamesItsProcessor) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_FALSE(machine.cpu_model.empty());
}

}  // namespace
}  // namespace lockstep::report
