#include "lockstep/tools/page/comparison_page.h"

#include <string>

#include <gtest/gtest.h>

#include "lockstep/tools/charts/canvas.h"
#include "lockstep/tools/charts/charts.h"
#include "lockstep/tools/tables/comparison_sections.h"
#include "tests/tools/canned.h"
#include "tests/tools/canned_time_line.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

TEST(Html, StandsAloneAndEscapesWhatItShows) {
  const std::string html = to_html(canned_comparison());
  for (const char* outside :
       {"href=\"h", "href=\"/", "src=", "@import", "url(", "<script"}) {
    EXPECT_FALSE(contains(html, outside)) << outside;
  }
  EXPECT_TRUE(contains(html, "A &lt;fast&gt; CPU"));
  EXPECT_FALSE(contains(html, "<fast>"));
  EXPECT_TRUE(contains(html, "prefers-color-scheme: dark"));
}

TEST(Html, ShowsTheSameFiguresAsTheTerminal) {
  const Comparison comparison = canned_comparison();
  const std::string html = to_html(comparison);
  for (const Section& section :
       {set_up_section(comparison), device_section(comparison),
        phase_section(comparison, 0), ratio_section(comparison)}) {
    for (const auto& row : section.rows) {
      for (const auto& cell : row) {
        if (cell.empty()) continue;
        EXPECT_TRUE(contains(html, ">" + escaped(cell) + "</t")) << cell;
      }
    }
  }
}

TEST(Html, ShowsACommandThatCanBeGivenToAShellAgain) {
  const std::string html = to_html(
      canned_comparison(),
      {.command = {"lockstep", "train", "--lr", "0.1", "a b", "it's", ""}});
  EXPECT_TRUE(
      contains(html, escaped("lockstep train --lr 0.1 'a b' 'it'\\''s' ''")));
}

TEST(TimeLineChart, IsOnThePageAndInThePicture) {
  const Comparison comparison = canned_ddp();
  for (const auto& drawn : {to_html(comparison), picture(comparison)}) {
    EXPECT_PRED2(contains, drawn, "A typical step of ddp, 40.0 ms");
    EXPECT_PRED2(contains, drawn, "rank 1  all-reduce");
    EXPECT_PRED2(contains, drawn,
                 "class=\"wait\"><title>wait: 4.00 ms from 26.0 ms</title>");
  }
  const TimeLine nothing;
  EXPECT_TRUE(time_line_chart(nothing).is_empty());
}

}  // namespace
}  // namespace lockstep::tools
