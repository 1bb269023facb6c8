#include "lockstep/report/charts.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "lockstep/report/line_chart.h"
#include "lockstep/report/page.h"
#include "lockstep/report/record_sections.h"
#include "lockstep/report/run_curves.h"
#include "tests/report/canned.h"

namespace lockstep::report::charts_test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Marks, AreRoundNumbersWithinTheAxis) {
  EXPECT_EQ(marks_between(0.9, 3.2, 5),
            (std::vector<double>{1, 1.5, 2, 2.5, 3}));
  EXPECT_EQ(marks_between(-1, 1, 4),
            (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(marks_between(7, 7, 5), std::vector<double>{7});
}

// Two is the distance between neighbours there: counting in steps of 0.5 would
// never end.
TEST(Marks, EndWhereNumbersAreTooLargeToBeCounted) {
  EXPECT_LE(marks_between(1e16, 1e16 + 2, 5).size(), 7u);
  const double most = std::numeric_limits<double>::max();
  EXPECT_LE(marks_between(-most, most, 5).size(), 7u);
}

TEST(LineChart, DrawsMeansAndABandOfManyPointsOnAPixel) {
  LineChart chart{.x_label = "step",
                  .curves = {{.label = "loss", .css_class = "run0"}},
                  .begins_at_zero = false,
                  .format_value = [](double value) {
                    return std::to_string(static_cast<int>(value));
                  }};
  for (int i = 0; i < 100'000; ++i) {
    chart.curves[0].points.emplace_back(i, i % 2 == 0 ? 0 : 10);
  }
  chart.curves[0].points.emplace_back(100'000, NAN);
  Canvas canvas(kNarrowLayout);
  draw_line_chart(canvas, chart);
  const std::string svg = canvas.finish("id", "title", "description");
  EXPECT_TRUE(contains(svg, "class=\"area run0\""));
  EXPECT_LT(svg.size(), 20'000u);
  EXPECT_FALSE(contains(svg, "nan"));
  EXPECT_TRUE(contains(svg, "<title id=\"id-t\">title</title>"));
}

TEST(Canvas, CutsTextsThatDontFitBetweenCharacters) {
  EXPECT_EQ(cut_to("cpu:0", 100), "cpu:0");
  const std::string cut = cut_to("größe größe größe größe", 80);
  EXPECT_TRUE(cut.ends_with("…")) << cut;
  EXPECT_LE(text_width(cut), 80);
  EXPECT_EQ(cut_to(std::string(100, 'w'), 60), "www…");
}

TEST(Losses, HaveTheStepsThatWereNotLeftOut) {
  train::RunReport report;
  report.first_step = 10;
  report.losses = {1, 2, 3};
  report.skipped_at = {12, 13};
  EXPECT_EQ(losses_by_step(report), (std::vector<std::pair<int64_t, double>>{
                                        {11, 1}, {14, 2}, {15, 3}}));
}

TEST(Commands, CanBeGivenToAShellAgain) {
  EXPECT_EQ(
      command_text({"lockstep", "train", "--lr", "0.1", "a b", "it's", ""}),
      "lockstep train --lr 0.1 'a b' 'it'\\''s' ''");
}

TEST(Page, GivesRowsWithoutANameToTheOneAbove) {
  Page page("heading", "lead");
  page.begin_chapter("Empty");
  page.begin_chapter("Devices");
  page.add_table({.title = "Memory",
                  .header = {"Run", "Device", "Peak"},
                  .rows = {{"dp", "cpu:0", "1 MiB"}, {"", "cpu:1", "2 MiB"}}});
  const std::string html = page.finish("title");
  EXPECT_TRUE(contains(html, "<th scope=\"row\" rowspan=\"2\">dp</th>"));
  EXPECT_TRUE(contains(html, "<caption>Memory</caption>"));
  EXPECT_TRUE(contains(html, "<td class=\"left\">cpu:1</td><td>2 MiB</td>"));
  EXPECT_TRUE(contains(html, "href=\"#chapter-1\">Devices</a>"));
  EXPECT_FALSE(contains(html, "Empty"));
}

TEST(DistributionChart, ShowsRunsOfWhichAllStepsAreKnown) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("dp", {0.02, 0.03, 0.04})}),
                     pool(kLockstep, {canned_round("single", {0.05})})};
  comparison.runs[1].report.step_time_percentiles_s.clear();
  const Chart chart = distribution_chart(comparison);
  ASSERT_FALSE(chart.is_empty());
  ASSERT_EQ(chart.figures.rows.size(), 1u);
  // numpy.percentile([0.02, 0.03, 0.04], [0, 10, 25, 50, ...]).
  EXPECT_EQ(chart.figures.rows[0],
            (std::vector<std::string>{"dp", "20.0 ms", "22.0 ms", "25.0 ms",
                                      "30.0 ms", "35.0 ms", "38.0 ms",
                                      "39.8 ms", "40.0 ms"}));
}

TEST(EnvironmentSection, HasOneColumnForRunsThatHadTheSame) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("single", {0.1})}),
                     pool(kLockstep, {canned_round("dp", {0.1})}),
                     pool(kLockstep, {canned_round("ddp", {0.1})})};
  for (auto& run : comparison.runs) run.report.environment.host = "one";
  EXPECT_EQ(environment_section(comparison).header,
            (std::vector<std::string>{"Fact", "single, dp, ddp"}));
  comparison.runs[2].report.environment.host = "two";
  EXPECT_EQ(environment_section(comparison).header,
            (std::vector<std::string>{"Fact", "single, dp", "ddp"}));
}

}  // namespace
}  // namespace lockstep::report::charts_test
