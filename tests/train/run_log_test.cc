#include "lockstep/train/record/run_log.h"

#include <gtest/gtest.h>

namespace lockstep::training {
namespace {

RunReport two_devices() {
  RunReport report;
  report.shards = 2;
  report.devices = {{.name = "cpu:0",
                     .samples = 5024,
                     .busy_fraction = 0.971,
                     .memory_peak_bytes = 47'500'000},
                    {.name = "cpu:1",
                     .samples = 4976,
                     .busy_fraction = 0.964,
                     .memory_peak_bytes = 1000}};
  report.memory_shared_bytes = 3 << 20;
  report.first_step = 10;
  report.steps = 167;
  report.step_time_s = {.median = 0.0521, .p90 = 0.0603};
  report.total_time_s = 75;
  report.samples_per_s = 1097.6;
  report.losses = {2.3, 0.8};
  report.epochs = {{.train = {{"loss", 2}}},
                   {.train = {{"loss", 0.83124}, {"accuracy", 0.7231}}}};
  report.test = {.metrics = {{"loss", 0.7}, {"accuracy", 0.751}},
                 .samples = 2000};
  report.parameter_sha256 = "12ab";
  return report;
}

TEST(Summary, SaysTimeDevicesAndResults) {
  EXPECT_EQ(summary_text(two_devices()),
            "steps      157 in 1 min 15 s, 1,098 samples/s\n"
            "step time  median 52.1 ms, p90 60.3 ms\n"
            "cpu:0      busy 97 %, memory peak 45.3 MiB\n"
            "cpu:1      busy 96 %, memory peak 1000 B\n"
            "shared     memory 3.0 MiB, shared by all\n"
            "training   loss 0.8312, accuracy 72.31 %\n"
            "test       loss 0.7000, accuracy 75.10 %");
}

TEST(Summary, BreaksLinesThatAreLongerThanTheTerminal) {
  const std::string text = summary_text(two_devices(), 40);
  EXPECT_TRUE(
      text.starts_with("steps      157 in 1 min 15 s, 1,098\n"
                       "           samples/s\n"
                       "step time  median 52.1 ms, p90 60.3 ms\n"
                       "cpu:0      busy 97 %, memory peak 45.3\n"
                       "           MiB\n"))
      << text;
}

TEST(Summary, SaysWhatALanguageModelComputes) {
  auto report = two_devices();
  report.tokens_of_sample = 64;
  report.flops_of_sample = 1e8;
  report.peak_flops_per_s = 2e11;
  report.skipped_steps = 3;
  report.rollbacks = 1;
  const std::string text = summary_text(report);
  for (const char* line :
       {"1,098 samples/s, 70,246 tokens/s\n",
        "compute    110 GFLOP/s, 55 % of what matrix products reach\n",
        "left out   the updates of 3 steps, and 1 return to a checkpoint\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
}

TEST(Summary, LeavesOutWhatThereWasNot) {
  auto report = two_devices();
  report.devices.resize(1);
  report.memory_shared_bytes = 0;
  report.test = {};
  const std::string text = summary_text(report);
  EXPECT_EQ(text.find("shared"), std::string::npos) << text;
  EXPECT_EQ(text.find("test"), std::string::npos) << text;
  EXPECT_EQ(summary_text(RunReport()), "");  // resumed at its end
}

// Their numbers change the bits.
TEST(Summary, NamesShardsAndThreadsBesideTheDigest) {
  auto report = two_devices();
  EXPECT_EQ(digest_text(report),
            "parameter_sha256 12ab (2 shards, 1 thread each)");
  report.shards = 1;
  report.intra_op_threads = 2;
  EXPECT_EQ(digest_text(report), "parameter_sha256 12ab (1 shard, 2 threads)");
  report.devices.front().name = "cuda:0";
  EXPECT_EQ(digest_text(report), "parameter_sha256 12ab (1 shard)");
}

}  // namespace
}  // namespace lockstep::training
