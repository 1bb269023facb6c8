#include "lockstep/tools/page/page.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

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

TEST(Page, KeepsAPercentSignOnTheLineOfItsNumber) {
  Page page("heading", "lead");
  page.begin_chapter("Reading");
  page.add_list({"85 % of it, of 100 %", "no share"});
  const std::string html = page.finish("title");
  EXPECT_TRUE(contains(
      html, "<li>85\xc2\xa0% of it, of 100\xc2\xa0%</li>\n<li>no share</li>"));
}

}  // namespace
}  // namespace lockstep::tools
