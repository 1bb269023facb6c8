#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/report/charts/canvas.h"
#include "lockstep/report/charts/charts.h"
#include "tests/report/canned.h"

namespace lockstep::report {
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
}  // namespace lockstep::report
