#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/tools/charts/canvas.h"
#include "lockstep/tools/charts/charts.h"
#include "tests/tools/canned.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

std::string drawn(const Chart& chart) {
  Canvas canvas(kNarrowLayout);
  chart.draw(canvas);
  return canvas.finish("chart", chart.title, chart.note);
}

// Reads the pictures and the page with an XML parser that we did not write.
TEST(Svg, IsWellFormedXml) {
  const std::string python = LOCKSTEP_TEST_PYTHON;
  if (python.empty()) GTEST_SKIP() << "the build knows no Python";
  const std::string path = testing::TempDir() + "lockstep_picture.svg";
  const Comparison comparison = canned_comparison();
  for (const std::string& svg :
       {picture(comparison), drawn(phase_chart(comparison)),
        drawn(memory_chart(comparison)), drawn(step_time_chart(comparison)),
        drawn(distribution_chart(comparison))}) {
    std::ofstream(path) << svg;
    Command command;
    command.arguments = {python, "-c",
                         "import sys, xml.etree.ElementTree as e;"
                         "e.parse(sys.argv[1])",
                         path};
    const auto result = run_command(command);
    EXPECT_TRUE(result.ok()) << result.err;
  }
  std::remove(path.c_str());
}

/// A text of a picture, with the pixels that it covers in its line.
struct DrawnText {
  double begin = 0;
  double end = 0;
  std::string text;
};

/// Returns the texts in each line of `svg` above its first chart, by the
/// position of the line.
std::map<double, std::vector<DrawnText>> table_lines(const std::string& svg) {
  const std::string table = svg.substr(0, svg.find("Step time of each run"));
  const std::regex pattern(
      "<text x=\"([0-9.]+)\" y=\"([0-9.]+)\" class=\"[^\"]*\""
      "( text-anchor=\"end\")?>([^<]*)</text>");
  std::map<double, std::vector<DrawnText>> lines;
  for (std::sregex_iterator at(table.begin(), table.end(), pattern), end;
       at != end; ++at) {
    const double x = std::stod((*at)[1]);
    const std::string text = (*at)[4];
    const double width = text_width(text);
    const bool is_at_end = (*at)[3].matched;
    lines[std::stod((*at)[2])].push_back(
        {is_at_end ? x - width : x, is_at_end ? x : x + width, text});
  }
  return lines;
}

// With rounds, the speed-ups have intervals.
TEST(Picture, WritesNoColumnOverAnother) {
  Comparison comparison = canned_comparison();
  comparison.machine.cpu_model =
      "Model of a processor whose name takes more than half of a line";
  for (const char* strategy : {"dp-loop-unfused", "ddp-loop-unfused"}) {
    comparison.runs.push_back(pool(kLockstep, three_rounds(strategy, 0.1234)));
  }
  relate(comparison);
  ASSERT_TRUE(comparison.runs.back().speedup);
  for (const ChartLayout& layout : {kPictureLayout, kNarrowPictureLayout}) {
    size_t cells = 0;
    for (const auto& [y, texts] : table_lines(picture(comparison, layout))) {
      for (size_t i = 0; i < texts.size(); ++i, ++cells) {
        EXPECT_GE(texts[i].begin, layout.margin) << texts[i].text;
        EXPECT_LE(texts[i].end, layout.width - layout.margin + 1)
            << texts[i].text;
        if (i > 0) {
          EXPECT_GT(texts[i].begin, texts[i - 1].end)
              << texts[i - 1].text << " and " << texts[i].text;
        }
      }
    }
    EXPECT_GT(cells, 7 * 7u);
  }
}

// The phases of canned runs leave out a tenth of the mean step.
TEST(PhaseChart, ShowsTheWholeMeanStep) {
  const std::string svg = drawn(phase_chart(canned_comparison()));
  EXPECT_TRUE(contains(svg, ">other: 3.00 ms (10 %)</title>")) << svg;
  EXPECT_TRUE(contains(svg, ">30.0 ms</text>")) << svg;
}

TEST(MemoryChart, NamesTheDeviceAfterALongNameOfARun) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, three_rounds("ddp-loop-unfused", 0.1))};
  Canvas canvas(kWideLayout);
  memory_chart(comparison).draw(canvas);
  const std::string svg = canvas.finish("chart", "title", "note");
  EXPECT_TRUE(contains(svg, "… cpu:0</text>")) << svg;
  EXPECT_TRUE(contains(svg, ">ddp-loop-unfused cpu:1: 8.0 MiB</title>"));
}

TEST(Svg, LeavesOutChartsOfWhatIsNotKnown) {
  Comparison comparison = canned_comparison();
  comparison.runs = {comparison.runs[3]};
  relate(comparison);
  EXPECT_TRUE(memory_chart(comparison).is_empty());
  EXPECT_TRUE(phase_chart(comparison).is_empty());
  EXPECT_TRUE(loss_chart(comparison).is_empty());
  EXPECT_FALSE(step_time_chart(comparison).is_empty());
}

TEST(Svg, EscapesTheFiveCharactersOfXml) {
  EXPECT_EQ(escaped("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
}

}  // namespace
}  // namespace lockstep::tools
