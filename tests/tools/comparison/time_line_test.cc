#include "lockstep/tools/comparison/time_line.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/tools/charts/axis.h"
#include "tests/tools/canned_time_line.h"

namespace lockstep::tools::time_line_test {
namespace {

TimeLine line() { return time_lines(canned_ddp()).at(0); }

// Returns a run of ddp with these ranks.
ComparedRun ddp_run(std::vector<training::RankTrace> ranks) {
  ComparedRun run{.engine = kLockstep, .time_line = std::move(ranks)};
  run.report.strategy = "ddp";
  return run;
}

// Returns the labels of the rows.
std::vector<std::string> labels_of(const TimeLine& line) {
  std::vector<std::string> labels;
  for (const auto& row : line.rows) labels.push_back(row.label);
  return labels;
}

TEST(TimeLine, IsDrawnForRanksAlone) {
  const auto lines = time_lines(canned_ddp());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].title, "A typical step of ddp, 40.0 ms");
  EXPECT_DOUBLE_EQ(lines[0].seconds, 0.040);
}

TEST(TimeLine, HasARowForEachLaneOfEachRankThatDidSomething) {
  EXPECT_EQ(labels_of(line()),
            (std::vector<std::string>{"rank 0  cpu:0", "rank 0  all-reduce",
                                      "rank 1  cpu:0", "rank 1  all-reduce"}));
}

TEST(TimeLine, ShowsDevicesInTheirOrder) {
  ComparedRun run = ddp_run({canned_trace(0, 25)});
  auto& log = run.time_line[0].log;
  log.lanes = {"main", "cpu:10", "all-reduce", "cpu:2"};
  log.spans.push_back(canned_span(3, "forward", TraceCategory::kCompute, 0, 8));
  EXPECT_EQ(labels_of(time_line_of(run)),
            (std::vector<std::string>{"rank 0  cpu:2", "rank 0  all-reduce",
                                      "rank 0  cpu:10"}));
}

TEST(TimeLine, CutsAnOuterSpanAroundAnInnerOne) {
  const TimeLine drawn = line();
  std::string found;
  for (const Block& block : drawn.rows[1].blocks) {
    found += std::string(kBlockKinds[block.kind].name) + " " +
             mark_label(block.begin_s) + "-" + mark_label(block.end_s) + ", ";
  }
  EXPECT_EQ(found, "all-reduce 25-26, wait 26-30, all-reduce 30-32, ");
}

TEST(TimeLine, LeavesOutTriflesButNoCommunication) {
  ComparedRun run = ddp_run({canned_trace(0, 25)});
  auto& spans = run.time_line[0].log.spans;
  spans.push_back(canned_span(0, "scatter", TraceCategory::kCompute, 0, 0));
  spans.back().end_ns = 10'000;
  spans.push_back(
      canned_span(2, "outcome", TraceCategory::kCommunication, 39, 39));
  spans.back().end_ns += 10'000;
  const TimeLine found = time_line_of(run);
  ASSERT_EQ(found.rows.size(), 2u);
  EXPECT_EQ(found.rows[1].blocks.size(), 4u);
}

TEST(TimeLine, ShowsTheFirstOfManyRanks) {
  std::vector<training::RankTrace> ranks;
  for (int64_t number = 0; number < 20; ++number) {
    ranks.push_back(canned_trace(number, 25));
  }
  const TimeLine found = time_line_of(ddp_run(std::move(ranks)));
  EXPECT_EQ(found.rows.back().rank, 7);
  EXPECT_EQ(found.title, "A typical step of ddp, 40.0 ms, 8 of 20 ranks");
}

TEST(TimeLine, CountsWhatCommunicationHidesBehindComputing) {
  // Out of 7 ms each, rank 1 computes for 5.
  const auto time = communication_of(line());
  EXPECT_NEAR(time.total_s, 0.007, 1e-9);
  EXPECT_NEAR(time.wait_s, 0.004, 1e-9);
  EXPECT_NEAR(time.hidden_s, 0.0025, 1e-9);
}

TEST(TimeLine, CountsAMomentOnceIfALaneWaitsForAnotherOneThatSends) {
  ComparedRun run = ddp_run({canned_trace(0, 25)});
  auto& spans = run.time_line[0].log.spans;
  spans.push_back(canned_span(0, "wait", TraceCategory::kWait, 24, 32));
  const auto time = communication_of(time_line_of(run));
  EXPECT_NEAR(time.total_s, 0.008, 1e-9);
  EXPECT_NEAR(time.wait_s, 0.005, 1e-9);
  EXPECT_NEAR(time.hidden_s, 0.001, 1e-9);
}

TEST(TimeLine, IsThatOfTheMedianRound) {
  auto rounds = std::vector<Measurement>{canned_round("ddp", {0.3}),
                                         canned_round("ddp", {0.1}),
                                         canned_round("ddp", {0.2})};
  for (size_t i = 0; i < rounds.size(); ++i) {
    rounds[i].time_line = {canned_trace(static_cast<int64_t>(i), 25)};
  }
  EXPECT_EQ(pool(kLockstep, rounds).time_line.at(0).rank, 2);
}

TEST(TimeLine, GoesThroughJson) {
  auto sent = canned_round("ddp", {0.25});
  sent.time_line = {canned_trace(0, 25), canned_trace(1, 30)};
  const auto got = measurement_from_json(to_json(sent));
  ASSERT_EQ(got.time_line.size(), 2u);
  EXPECT_EQ(got.time_line[1].log.spans.size(), 7u);
  EXPECT_EQ(to_json(canned_ddp())["runs"][1]["time_line"].size(), 2u);
}

}  // namespace
}  // namespace lockstep::tools::time_line_test
