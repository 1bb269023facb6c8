// Tests the records of a run for reports.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/inspect/topology.h"
#include "lockstep/train/record/thinned_series.h"
#include "lockstep/train/report/run_environment.h"
#include "tests/train/runs.h"

namespace lockstep::training::records_test {
namespace {

TEST(ThinnedSeries, KeepsSoManyStepsAtMostAndAllAsFarApart) {
  ThinnedSeries<int64_t> series(8);
  for (int64_t step = 1; step <= 1'000'000; ++step) series.add(step, 2 * step);
  const auto& points = series.points();
  ASSERT_GE(points.size(), 4u);
  ASSERT_LE(points.size(), 8u);
  const int64_t apart = points[1].step - points[0].step;
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].step, static_cast<int64_t>(i + 1) * apart);
    EXPECT_EQ(points[i].value, 2 * points[i].step);
  }
}

TEST(ThinnedSeries, ForgetsStepsThatAreRepeated) {
  ThinnedSeries<int> series(100);
  for (int64_t step = 1; step <= 9; ++step) series.add(step, 1);
  series.add(5, 2);
  ASSERT_EQ(series.points().size(), 5u);
  EXPECT_EQ(series.points().back().value, 2);
}

// numpy.percentile([4, 1, 3, 2], [0, 50, 90, 100]).
TEST(Percentiles, AreAsNumpyHasThem) {
  const auto all = percentiles({4, 1, 3, 2});
  ASSERT_EQ(all.size(), 101u);
  EXPECT_DOUBLE_EQ(all[0], 1);
  EXPECT_DOUBLE_EQ(all[50], 2.5);
  EXPECT_DOUBLE_EQ(all[90], 3.7);
  EXPECT_DOUBLE_EQ(all[100], 4);
  EXPECT_TRUE(percentiles({}).empty());
}

TEST(Records, OfARunAreBoundedAndGoThroughJson) {
  auto options = sharded_run();
  options.max_steps(30);
  options.epochs(0);
  const RunReport report = run_training(options);
  EXPECT_EQ(report.step_times.steps.size(), 30u);
  ASSERT_EQ(report.time_line.size(), 1u);
  // One of the last five of those that were recorded: 2 to 11.
  int64_t step = -1;
  for (const auto& span : report.time_line[0].log.spans) {
    if (span.category == TraceCategory::kStep) step = span.index;
  }
  EXPECT_GE(step, 6);
  EXPECT_LE(step, 10);
  ASSERT_TRUE(report.topology);
  EXPECT_EQ(report.topology->devices.size(), 1u);
  const auto json = to_json(report);
  EXPECT_EQ(to_json(run_report_from_json(json)), json);
}

TEST(Records, OfRanksHaveEachRanksDevice) {
  const RunReport report = distributed_by(
      sharded_run(), 2, "shm",
      [](const ImageTraining& options) { return run_training(options); });
  ASSERT_EQ(report.time_line.size(), 2u);
  EXPECT_EQ(report.time_line[1].rank, 1);
  EXPECT_FALSE(report.time_line[1].log.spans.empty());
}

TEST(Records, LeaveTheRecordingToWhoHasItAlready) {
  const TraceRecording others(0);
  const RunReport report = run_training(sharded_run());
  for (const auto& rank : report.time_line) {
    EXPECT_TRUE(rank.log.spans.empty());
  }
}

TEST(RunEnvironment, KeepsNoVariableThatMayBeSecret) {
  ::setenv("AWS_SECRET_ACCESS_KEY", "hidden", 1);
  ::setenv("OMP_NUM_THREADS", "3", 1);
  const RunEnvironment found = this_environment();
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
  ::unsetenv("OMP_NUM_THREADS");
  const std::string text = to_json(found).dump();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("\"OMP_NUM_THREADS\":\"3\""), std::string::npos);
  EXPECT_FALSE(found.kernel.empty());
  EXPECT_EQ(to_json(environment_from_json(nlohmann::json::parse(text))).dump(),
            text);
}

}  // namespace
}  // namespace lockstep::training::records_test
