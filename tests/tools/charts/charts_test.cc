#include "lockstep/tools/charts/charts.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/tools/charts/line_chart.h"
#include "tests/tools/canned.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

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

}  // namespace
}  // namespace lockstep::tools
