#include "lockstep/train/run_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/train/rank_trace.h"
#include "tests/base/damaged_json.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::training {
namespace {

RunReport example() {
  RunReport report;
  report.lockstep = "0.1.0";
  report.command = {"lockstep", "train"};
  report.strategy = "dp";
  report.model = "mlp";
  report.precision = "bf16";
  report.parameters = 12;
  report.world_size = 2;
  report.shards = 4;
  report.intra_op_threads = 3;
  report.batch_size = 9;
  report.split = {5, 4};
  report.devices = {{.name = "cpu:0",
                     .samples = 50,
                     .busy_fraction = 0.5,
                     .memory_peak_bytes = 1000,
                     .gradient_copy_bytes = 500},
                    {.name = "cpu:1"}};
  report.memory_shared_bytes = 7;
  report.parameter_bytes = 48;
  report.optimizer_state_bytes = 49;
  report.steps = 10;
  report.step_time_s = {.median = 1, .p10 = 0.5, .p90 = 2, .mean = 3, .min = 4};
  report.data_wait_s = 0.25;
  report.total_time_s = 5;
  report.samples_per_s = 6;
  report.phases_s = {1, 2, 3, 4, 5, 6, 7};
  report.losses = {0.5, 0.25};
  report.epochs = {{.epoch = 1, .lr = 0.1, .train = {{"loss", 2}}}};
  report.test = {.metrics = {{"loss", 1}, {"accuracy", 0.75}}, .samples = 100};
  report.parameter_sha256 = "ab";
  report.last_checkpoint = "runs/x";
  report.interrupted = true;
  return report;
}

// numpy.percentile([4, 1, 3, 2], [50, 10, 90]) is [2.5, 1.3, 3.7].
TEST(RunReport, SummarizesAsNumpyDoes) {
  const TimeSummary summary = summarize({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(summary.median, 2.5);
  EXPECT_DOUBLE_EQ(summary.p10, 1.3);
  EXPECT_DOUBLE_EQ(summary.p90, 3.7);
  EXPECT_DOUBLE_EQ(summary.mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.min, 1);
}

TEST(RunReport, SummarizesOneValueAndNone) {
  EXPECT_DOUBLE_EQ(summarize({3}).p90, 3);
  EXPECT_DOUBLE_EQ(summarize({}).median, 0);
}

TEST(RunReport, ComesBackFromJsonAsItWas) {
  const auto json = to_json(example());
  EXPECT_EQ(to_json(run_report_from_json(json)), json);
}

TEST(RunReport, HasTheDocumentedKeys) {
  const auto json = to_json(example());
  for (const char* key :
       {"lockstep", "command", "strategy", "model", "parameters", "world_size",
        "processes", "shards", "batch_size", "split", "devices", "steps",
        "step_time_s", "total_time_s", "samples_per_s", "epochs", "test",
        "parameter_sha256"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["devices"][0]["busy_fraction"], 0.5);
  EXPECT_EQ(json["devices"][0]["gradient_copy_bytes"], 500);
  EXPECT_EQ(json["split"], nlohmann::json::parse("[5, 4]"));
  EXPECT_EQ(json["test"]["samples"], 100);
}

TEST(RunReport, IsReadWithoutTheKeysThatOlderVersionsDidNotWrite) {
  auto json = to_json(example());
  json["step_time_s"].erase("p10");
  json.erase("precision");
  const RunReport report = run_report_from_json(json);
  EXPECT_EQ(report.step_time_s.p10, 0);
  EXPECT_EQ(report.step_time_s.p90, 2);
  EXPECT_EQ(report.precision, "");
}

TEST(RunReport, NamesTheMissingKey) {
  auto json = to_json(example());
  json.erase("shards");
  expect_problem(error_of<IoError>([&] { run_report_from_json(json); }),
                 ErrorCode::kMalformedData, {"'shards'"});
}

TEST(RunReport, NamesTheKeyOfAWrongType) {
  auto json = to_json(example());
  json["test"]["loss"] = "low";
  const auto message = error_of<IoError>([&] { run_report_from_json(json); });
  expect_problem(message, ErrorCode::kMalformedData, {"'loss'", "\"low\""});
}

TEST(RunReport, NamesNoLibraryIfItIsDamaged) {
  RunReport report = example();
  report.step_times.steps = {1, 2};
  report.step_times.seconds = {0.5, 0.25};
  report.best = BestReport{.step = 3, .metric = "loss", .value = 0.5};
  report.environment.variables = {{"OMP_NUM_THREADS", "1"}};
  RankTrace trace{.rank = 0, .host = "node1", .pid = 4711};
  trace.log.lanes = {"main"};
  trace.log.spans = {{.lane = 0, .name = "step"}};
  report.time_line = {trace};
  expect_own_errors(to_json(report), run_report_from_json);
}

TEST(RunReport, IsWrittenInTheOrderOfItsFields) {
  const TemporaryFolder folder;
  write_report(folder.path("run.json"), example());
  const std::string text = content_of(folder.path("run.json"));
  EXPECT_LT(text.find("\"lockstep\""), text.find("\"command\""));
  EXPECT_LT(text.find("\"command\""), text.find("\"batch_size\""));
  EXPECT_EQ(nlohmann::json::parse(text), to_json(example()));
}

}  // namespace
}  // namespace lockstep::training
