#include "lockstep/train/record/live_status.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/monitor/job_folder.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

TEST(LiveStatuses, OfARunSayWhatCameOfIt) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.out_dir(folder.path("out"));
  const RunReport report = run_training(options);
  const auto statuses = monitor::read_statuses(folder.path("out") + "/live");
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses[0].activity, monitor::Activity::kEnded);
  EXPECT_EQ(statuses[0].step, report.steps);
  EXPECT_EQ(statuses[0].total_steps, report.steps);
  ASSERT_EQ(statuses[0].losses.size(), report.losses.size());
  EXPECT_EQ(statuses[0].losses.back().loss, report.losses.back());
}

TEST(LiveStatuses, AreThereForEachRank) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.out_dir(folder.path("out"));
  distributed(options, 2, "tcp");
  EXPECT_EQ(monitor::read_statuses(folder.path("out") + "/live").size(), 2u);
}

TEST(LiveStatuses, AreNotWrittenWhereNobodyWantsThem) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.out_dir(folder.path("out"));
  options.log().live_status(false);
  run_training(options);
  EXPECT_FALSE(std::filesystem::exists(folder.path("out") + "/live"));
}

// Blocks that are kept for later tensors belong to neither.
TEST(LiveStatuses, HaveNoMoreMemoryThanItsPeak) {
  const TemporaryFolder folder;
  TrainOptions options;
  options.out_dir(folder.path("out"));
  const RunReport report;
  LiveStatus live(options, ProcessGroup(), report, 1, [] {
    return std::vector<DeviceUse>{{.name = "cpu:0",
                                   .memory_bytes = 300,
                                   .tensor_bytes = 100,
                                   .memory_peak_bytes = 200}};
  });
  live.publish();
  const auto status =
      monitor::read_statuses(folder.path("out") + "/live").at(0);
  EXPECT_EQ(status.devices.at(0).memory_bytes, 100);
  EXPECT_EQ(status.devices.at(0).memory_peak_bytes, 200);
}

TEST(LiveStatuses, OfALongRunKeepAFewLosses) {
  const TemporaryFolder folder;
  TrainOptions options;
  options.out_dir(folder.path("out"));
  RunReport report;
  report.model = "mlp";
  LiveStatus live(options, ProcessGroup(), report, 100'000,
                  [] { return std::vector<DeviceUse>(); });
  for (int64_t step = 1; step <= 100'000; ++step) {
    live.after_step({.step = step, .step_s = 0.001},
                    {{"loss", static_cast<double>(step)}});
  }
  live.publish();
  const auto status =
      monitor::read_statuses(folder.path("out") + "/live").at(0);
  EXPECT_LT(status.losses.size(), 600u);
  EXPECT_GT(status.losses.size(), 200u);
  EXPECT_EQ(status.losses.front().step, 1);
  EXPECT_EQ(status.losses.back().step, 100'000);
  for (const auto& point : status.losses) {
    EXPECT_EQ(point.loss, static_cast<double>(point.step));
  }
  EXPECT_NEAR(status.step_s, 0.001, 1e-9);
}

}  // namespace
}  // namespace lockstep::training
