#include "lockstep/report/time_line.h"

#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/table.h"
#include "lockstep/report/rendering.h"
#include "lockstep/report/sections.h"
#include "tests/base/temporary_folder.h"
#include "tests/report/canned.h"

namespace lockstep::report {
namespace {

constexpr int64_t kMs = 1'000'000;

TraceLog::Span span(size_t lane, const char* name, TraceCategory category,
                    int64_t begin_ms, int64_t end_ms) {
  return {.lane = lane,
          .name = name,
          .category = category,
          .begin_ns = begin_ms * kMs,
          .end_ns = end_ms * kMs};
}

// A step of 40 ms: forward to 10, backward to `backward_ms`, all-reduce from 25
// to 32 with a wait up to 30, update from 32.
train::RankTrace rank(int64_t number, int64_t backward_ms) {
  constexpr auto kCompute = TraceCategory::kCompute;
  TraceLog log{.lanes = {"main", "cpu:0", "all-reduce"}};
  log.spans = {
      span(0, "step", TraceCategory::kStep, 0, 40),
      span(1, "forward", kCompute, 0, 8),
      span(1, "loss", kCompute, 8, 10),
      span(1, "backward", kCompute, 10, backward_ms),
      span(2, "all-reduce", TraceCategory::kCommunication, 25, 32),
      span(2, "wait", TraceCategory::kWait, 26, 30),
      span(1, "update", kCompute, 32, 40),
  };
  return {.rank = number,
          .host = "host",
          .pid = 1,
          .devices = "cpu:0",
          .clock = "clock",
          .log = std::move(log)};
}

Comparison with_ddp() {
  auto round = canned_round("ddp", {0.040});
  round.time_line = {rank(0, 25), rank(1, 30)};
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("dp", {0.050})}),
                     pool(kLockstep, {round})};
  relate(comparison);
  return comparison;
}

TimeLine line() { return time_lines(with_ddp()).at(0); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string one; std::getline(stream, one);) lines.push_back(one);
  return lines;
}

/// LC_ALL while it lives.
class Locale {
 public:
  explicit Locale(const char* name) {
    if (const char* value = std::getenv("LC_ALL")) before_ = value;
    ::setenv("LC_ALL", name, 1);
  }
  ~Locale() {
    if (before_) {
      ::setenv("LC_ALL", before_->c_str(), 1);
    } else {
      ::unsetenv("LC_ALL");
    }
  }

 private:
  std::optional<std::string> before_;
};

TEST(TimeLine, IsDrawnForRanksAlone) {
  const auto lines = time_lines(with_ddp());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].title, "A typical step of ddp, 40.0 ms");
  EXPECT_DOUBLE_EQ(lines[0].seconds, 0.040);
}

TEST(TimeLine, HasARowForEachLaneOfEachRankThatDidSomething) {
  const TimeLine drawn = line();
  std::vector<std::string> labels;
  for (const auto& row : drawn.rows) labels.push_back(row.label);
  EXPECT_EQ(labels,
            (std::vector<std::string>{"rank 0  cpu:0", "rank 0  all-reduce",
                                      "rank 1  cpu:0", "rank 1  all-reduce"}));
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
  ComparedRun run{.engine = kLockstep};
  run.report.strategy = "ddp";
  run.time_line = {rank(0, 25)};
  auto& spans = run.time_line[0].log.spans;
  spans.push_back(span(0, "scatter", TraceCategory::kCompute, 0, 0));
  spans.back().end_ns = 10'000;
  spans.push_back(span(2, "outcome", TraceCategory::kCommunication, 39, 39));
  spans.back().end_ns += 10'000;
  const TimeLine found = time_line_of(run);
  ASSERT_EQ(found.rows.size(), 2u);
  EXPECT_EQ(found.rows[1].blocks.size(), 4u);
}

TEST(TimeLine, ShowsTheFirstOfManyRanks) {
  ComparedRun run{.engine = kLockstep};
  run.report.strategy = "ddp";
  for (int64_t number = 0; number < 20; ++number) {
    run.time_line.push_back(rank(number, 25));
  }
  const TimeLine found = time_line_of(run);
  EXPECT_EQ(found.rows.back().rank, 7);
  EXPECT_EQ(found.title, "A typical step of ddp, 40.0 ms, 8 of 20 ranks");
}

TEST(TimeLine, CountsWhatCommunicationHidesBehindComputing) {
  // Of 7 ms each, rank 1 computes for 5 of them.
  const auto time = communication_of(line());
  EXPECT_NEAR(time.total_s, 0.007, 1e-9);
  EXPECT_NEAR(time.wait_s, 0.004, 1e-9);
  EXPECT_NEAR(time.hidden_s, 0.0025, 1e-9);
}

TEST(TimeLineText, DrawsBlocksInTheirPlaces) {
  const Locale locale("C");
  // 40 columns for 40 ms.
  const auto lines = lines_of(to_text(line(), 18 + 3 + 40, Colour::kNever));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0],
            "rank 0  cpu:0      |ffffffffffBBBBBBBBBBBBBBB       "
            "uuuuuuuu|");
  EXPECT_EQ(lines[1],
            "rank 0  all-reduce |                         R....RR"
            "        |");
  EXPECT_EQ(lines[2],
            "rank 1  cpu:0      |ffffffffffBBBBBBBBBBBBBBBBBBBB  "
            "uuuuuuuu|");
  EXPECT_EQ(lines[4], "                    0 ms      10        20        30");
  EXPECT_EQ(lines[5],
            "                    f forward  B backward  R all-reduce");
}

TEST(TimeLineText, UsesBlocksWhereTheTerminalHasThem) {
  const Locale locale("C.UTF-8");
  const std::string text = to_text(line(), 100, Colour::kNever);
  EXPECT_PRED2(contains, text, "░░█");
  EXPECT_PRED2(contains, text, "▞ all-reduce");
  EXPECT_FALSE(contains(text, "\033"));
  EXPECT_PRED2(contains, to_text(line(), 100, Colour::kAlways), "\033[34m█");
}

TEST(TimeLineText, FitsItsWidth) {
  for (const char* name : {"C", "C.UTF-8"}) {
    const Locale locale(name);
    for (const int width : {50, 80, 133, 200}) {
      const auto lines = lines_of(to_text(line(), width, Colour::kNever));
      for (const auto& one : lines) {
        EXPECT_LE(display_width(one), static_cast<size_t>(width)) << one;
      }
      EXPECT_EQ(display_width(lines[0]), static_cast<size_t>(width));
    }
  }
}

TEST(TimeLineText, ShowsWhatIsShorterThanAColumn) {
  const Locale locale("C");
  ComparedRun run{.engine = kLockstep};
  run.report.strategy = "ddp";
  run.time_line = {rank(0, 25)};
  auto& spans = run.time_line[0].log.spans;
  spans.push_back(span(2, "outcome", TraceCategory::kCommunication, 35, 35));
  spans.back().end_ns += 1000;
  const auto lines =
      lines_of(to_text(time_line_of(run), 18 + 3 + 40, Colour::kNever));
  EXPECT_PRED2(contains, lines[1], "R....RR   R    |");
}

TEST(TimeLineText, MarksTheAxisInRoundNumbers) {
  EXPECT_EQ(axis_marks(0.040, 5),
            (std::vector<double>{0, 0.01, 0.02, 0.03, 0.04}));
  EXPECT_EQ(axis_marks(0.011, 5).size(), 3u);  // 0, 5, 10 ms
  EXPECT_EQ(axis_marks(0, 5), std::vector<double>{0});
  EXPECT_EQ(mark_label(0.0025), "2.5");
  EXPECT_EQ(mark_label(1.2), "1200");
}

TEST(TimeLineChart, IsOnThePageAndInThePicture) {
  const Comparison comparison = with_ddp();
  for (const auto& drawn : {to_html(comparison), picture(comparison)}) {
    EXPECT_PRED2(contains, drawn, "A typical step of ddp, 40.0 ms");
    EXPECT_PRED2(contains, drawn, "rank 1  all-reduce");
    EXPECT_PRED2(contains, drawn,
                 "class=\"wait\"><title>wait: 4.00 ms from 26.0 ms</title>");
  }
  const TimeLine nothing;
  EXPECT_TRUE(time_line_chart(nothing).is_empty());
}

TEST(TimeLineReading, SaysWhatCommunicationTakesAndHides) {
  std::string all;
  for (const auto& sentence : reading(with_ddp())) all += sentence + "\n";
  EXPECT_PRED2(contains, all,
               "A typical step of ddp, 40.0 ms: a rank spends 7.00 ms of it "
               "(18 %) with other ranks, 4.00 ms of that waiting for them; 36 "
               "% of it is hidden behind computing.");
}

TEST(TimeLine, IsThatOfTheMedianRound) {
  auto rounds = std::vector<Measurement>{canned_round("ddp", {0.3}),
                                         canned_round("ddp", {0.1}),
                                         canned_round("ddp", {0.2})};
  for (size_t i = 0; i < rounds.size(); ++i) {
    rounds[i].time_line = {rank(static_cast<int64_t>(i), 25)};
  }
  EXPECT_EQ(pool(kLockstep, rounds).time_line.at(0).rank, 2);
}

TEST(TimeLine, GoesThroughJson) {
  auto sent = canned_round("ddp", {0.25});
  sent.time_line = {rank(0, 25), rank(1, 30)};
  const auto got = measurement_from_json(to_json(sent));
  ASSERT_EQ(got.time_line.size(), 2u);
  EXPECT_EQ(got.time_line[1].log.spans.size(), 7u);
  EXPECT_EQ(to_json(with_ddp())["runs"][1]["time_line"].size(), 2u);
}

TEST(Devices, OfRanksAreNamedWithTheirRank) {
  const Section section = device_section(with_ddp());
  EXPECT_EQ(section.rows[3][1], "rank 0  cpu:0");
  EXPECT_EQ(section.rows[4][1], "rank 1  cpu:1");
  EXPECT_EQ(section.rows[4][2], "32");
  EXPECT_EQ(section.rows[4][4], "90 %");
}

}  // namespace
}  // namespace lockstep::report
