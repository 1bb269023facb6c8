#include "lockstep/base/trace.h"

#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr auto kCompute = TraceCategory::kCompute;

void record(const char* name) { const TraceSpan span(name, kCompute); }

std::vector<std::string> names_of(const TraceLog& log) {
  std::vector<std::string> names;
  for (const auto& span : log.spans) names.push_back(span.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Trace, KeepsNameCategoryIndexAndTimes) {
  const TraceRecording recording(0);
  const TraceLane lane(0, "cpu:0");
  const int64_t before = trace_clock_ns();
  { const TraceSpan span("all-reduce", TraceCategory::kCommunication, 7); }
  const TraceLog log = recording.log();
  ASSERT_EQ(log.spans.size(), 1u);
  const auto& span = log.spans[0];
  EXPECT_EQ(span.name, "all-reduce");
  EXPECT_EQ(span.category, TraceCategory::kCommunication);
  EXPECT_EQ(span.index, 7);
  EXPECT_LE(before, span.begin_ns);
  EXPECT_LE(span.begin_ns, span.end_ns);
  EXPECT_LE(span.end_ns, trace_clock_ns());
  EXPECT_EQ(log.lanes, Names{"cpu:0"});
}

TEST(Trace, PutsAnOuterSpanBeforeWhatIsInIt) {
  const TraceRecording recording(0);
  const TraceLane lane(0, "main");
  {
    const TraceSpan outer("outer", kCompute);
    record("first");
    record("second");
  }
  const TraceLog log = recording.log();
  EXPECT_EQ(names_of(log), (Names{"outer", "first", "second"}));
  EXPECT_LE(log.spans[0].begin_ns, log.spans[1].begin_ns);
  EXPECT_LE(log.spans[1].end_ns, log.spans[2].begin_ns);
  EXPECT_LE(log.spans[2].end_ns, log.spans[0].end_ns);
}

TEST(Trace, RecordsNothingWhereNobodyAsked) {
  record("without a recording");
  const TraceRecording recording(1);
  record("without a lane");
  {
    const TraceLane lane(0, "main");
    record("of another rank");
  }
  EXPECT_TRUE(recording.log().spans.empty());
}

TEST(Trace, LeavesOutWhatBeganBeforeTheRecording) {
  const TraceLane lane(0, "main");
  std::optional<TraceSpan> early(std::in_place, "early", kCompute);
  const TraceRecording recording(0);
  early.reset();
  record("late");
  EXPECT_EQ(names_of(recording.log()), Names{"late"});
}

TEST(Trace, GoesBackToTheOuterLane) {
  const TraceRecording recording(0);
  const TraceLane outer(0, "main");
  {
    const TraceLane inner(0, "all-reduce");
    record("inner");
  }
  record("outer");
  const TraceLog log = recording.log();
  ASSERT_EQ(log.spans.size(), 2u);
  EXPECT_EQ(log.lanes[log.spans[0].lane], "all-reduce");
  EXPECT_EQ(log.lanes[log.spans[1].lane], "main");
}

TEST(Trace, KeepsRanksThatAreThreadsApart) {
  constexpr int kRanks = 4;
  constexpr size_t kSpans = 1000;
  std::vector<std::thread> threads;
  std::vector<TraceLog> logs(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&logs, rank] {
      const TraceRecording recording(rank);
      const TraceLane lane(rank, "main");
      std::thread helper([rank] {
        const TraceLane own(rank, "helper");
        for (size_t i = 0; i < kSpans; ++i) record("beside");
      });
      for (size_t i = 0; i < kSpans; ++i) record("own");
      helper.join();
      logs[static_cast<size_t>(rank)] = recording.log();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const TraceLog& log : logs) {
    EXPECT_EQ(log.spans.size(), 2 * kSpans);
    EXPECT_EQ(log.lanes.size(), 2u);
    for (const auto& span : log.spans) {
      EXPECT_EQ(span.name, log.lanes[span.lane] == "main" ? "own" : "beside");
    }
  }
}

TEST(Trace, DropsTheOldestAndSaysHowMany) {
  const TraceRecording recording(0, 2);
  const TraceLane lane(0, "main");
  for (const char* name : {"first", "second", "third"}) record(name);
  EXPECT_EQ(names_of(recording.log()), (Names{"second", "third"}));
  EXPECT_EQ(recording.log().dropped, 1);
}

TEST(Trace, ForgetsWhatEndedBefore) {
  TraceRecording recording(0);
  const TraceLane lane(0, "main");
  record("first");
  const int64_t between = trace_clock_ns() + 1;
  while (trace_clock_ns() <= between) {
  }
  record("second");
  recording.forget_before(between);
  EXPECT_EQ(names_of(recording.log()), Names{"second"});
  EXPECT_EQ(recording.log().dropped, 0);
}

TEST(Trace, RefusesToRecordARankTwice) {
  {
    const TraceRecording recording(3);
    EXPECT_THROW(TraceRecording(3), InvalidArgument);
  }
  const TraceRecording again(3);
}

TEST(Trace, NamesItsCategories) {
  for (const auto category :
       {TraceCategory::kStep, TraceCategory::kCompute,
        TraceCategory::kCommunication, TraceCategory::kWait}) {
    EXPECT_EQ(parse_trace_category(to_string(category)), category);
  }
  EXPECT_THROW(parse_trace_category("sleep"), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
