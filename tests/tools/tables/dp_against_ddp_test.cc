#include <sstream>

#include <gtest/gtest.h>

#include "lockstep/base/table.h"
#include "lockstep/tools/charts/comparison_text.h"
#include "lockstep/tools/page/comparison_page.h"
#include "lockstep/tools/tables/comparison_sections.h"
#include "tests/tools/canned.h"

namespace lockstep::tools {
namespace {

using Row = std::vector<std::string>;

Comparison with_strategies(const std::vector<std::string>& strategies) {
  Comparison comparison;
  for (const auto& strategy : strategies) {
    const size_t devices = strategy == "single" ? 1 : 2;
    const double seconds = strategy == "dp-classic" ? 0.040 : 0.020;
    auto round = canned_round(strategy, {seconds}, devices);
    if (has_ranks(strategy)) round.report.processes = 2;
    comparison.runs.push_back(pool(kLockstep, {round}));
  }
  relate(comparison);
  return comparison;
}

TEST(DpAgainstDdp, FillsThePracticalsFourRows) {
  auto comparison = with_strategies({"single", "ddp", "dp-classic"});
  auto& classic = comparison.runs[2].report;
  classic.devices[0].memory_peak_bytes = 120 << 20;
  classic.devices[1].memory_peak_bytes = 40 << 20;
  classic.devices[1].busy_fraction = 0.5;
  classic.phases_s = {.forward = 0.010, .backward = 0.020, .reduce = 0.010};
  comparison.runs[1].report.phases_s = {
      .forward = 0.010, .backward = 0.005, .reduce = 0.005};
  const Section section = dp_against_ddp_section(comparison);
  EXPECT_EQ(section.header, (Row{"Aspect", "dp-classic", "ddp"}));
  ASSERT_EQ(section.rows.size(), 7u);
  EXPECT_EQ(section.rows[0], (Row{"Processes", "1", "2"}));
  EXPECT_EQ(section.rows[1], (Row{"Data split", "automatic", "by rank"}));
  EXPECT_EQ(section.rows[2], (Row{"", "32/32", "32/32"}));
  EXPECT_EQ(section.rows[3],
            (Row{"GPU usage", "busy 50 to 90 %", "busy 90 %"}));
  EXPECT_EQ(section.rows[4], (Row{"", "memory 3.00x", "memory 1.00x"}));
  EXPECT_EQ(section.rows[5], (Row{"Scalability", "25 % fixed", "25 % fixed"}));
  EXPECT_EQ(section.rows[6], (Row{"", "0.50x, 2 devices", "1.00x, 2 devices"}));
}

TEST(DpAgainstDdp, IsThereOnlyWhereBothWereMeasured) {
  EXPECT_TRUE(
      dp_against_ddp_section(with_strategies({"single", "dp"})).rows.empty());
  EXPECT_TRUE(
      dp_against_ddp_section(with_strategies({"single", "ddp"})).rows.empty());
  EXPECT_EQ(dp_against_ddp_section(with_strategies({"dp", "ddp-loop"})).header,
            (Row{"Aspect", "dp", "ddp-loop"}));
  EXPECT_EQ(
      dp_against_ddp_section(with_strategies({"dp-loop", "ddp-loop"})).header,
      (Row{"Aspect", "dp-loop", "ddp-loop"}));
  EXPECT_EQ(
      dp_against_ddp_section(with_strategies({"dp", "ddp", "ddp-loop"})).header,
      (Row{"Aspect", "dp", "ddp"}));
}

TEST(DpAgainstDdp, IsShownInEightyColumnsAndOnThePage) {
  const auto comparison = with_strategies({"dp-classic", "dp", "ddp"});
  const std::string text = to_text(comparison, Details::kAll, Colour::kNever);
  const auto at = text.find("\nDP against DDP\n");
  ASSERT_NE(at, std::string::npos) << text;
  std::istringstream table(text.substr(at, text.find("\n\n", at) - at));
  for (std::string line; std::getline(table, line);) {
    EXPECT_LE(display_width(line), 80u) << line;
  }
  EXPECT_NE(to_html(comparison).find("DP against DDP"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::tools
