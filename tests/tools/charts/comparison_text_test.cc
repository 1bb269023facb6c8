#include "lockstep/tools/charts/comparison_text.h"

#include <algorithm>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/table.h"
#include "lockstep/base/terminal.h"
#include "lockstep/tools/tables/comparison_sections.h"
#include "tests/tools/canned.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

TEST(Text, FitsATerminalAndHasNoColourUnlessAsked) {
  const std::string plain =
      to_text(canned_comparison(), Details::kNone, Colour::kNever);
  EXPECT_FALSE(contains(plain, "\033"));
  EXPECT_TRUE(contains(plain,
                       "mlp (6,307,850 parameters), batch of 64, 2 "
                       "devices"));
  EXPECT_TRUE(contains(plain, "3 rounds of 30 steps"));
  EXPECT_TRUE(
      contains(to_text(canned_comparison(), Details::kNone, Colour::kAlways),
               "\033[1m"));
}

// Returns everything that a comparison can show, with the longest possible
// names.
Comparison everything() {
  Comparison comparison = canned_comparison();
  auto& runs = comparison.runs;
  runs.insert(runs.begin() + 3,
              {pool(kLockstep, three_rounds("ddp", 0.0195)),
               pool(kLockstep, three_rounds("ddp-loop", 0.033))});
  runs.push_back(pool(kPyTorch, three_rounds("single", 0.031, 0)));
  runs.push_back(pool(kPyTorch, three_rounds("ideal", 0.0201, 0)));
  comparison.machine.cpu_model =
      "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz with a long name";
  comparison.notes = {
      "PyTorch was left out: "
      "/a/folder/with/a/path/that/is/longer/than/any/line/of/a/"
      "narrow/terminal/python3 can't import torch."};
  relate(comparison);
  return comparison;
}

size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) {
    widest = std::max(widest, display_width(line));
  }
  return widest;
}

TEST(Text, FitsTerminalsOfAnyWidth) {
  const Comparison comparison = everything();
  for (const int width : {40, 60, 80, 100, 120, 200}) {
    const std::string text =
        to_text(comparison, Details::kAll, Colour::kNever, width);
    EXPECT_LE(widest_line(text), static_cast<size_t>(width)) << text;
    // Nothing is lost.
    for (const Section& section :
         {set_up_section(comparison), device_section(comparison),
          ratio_section(comparison)}) {
      for (const auto& row : section.rows) {
        for (const auto& cell : row) EXPECT_PRED2(contains, text, cell);
      }
    }
  }
}

// The first screen has what most people want to know, and no table is cut.
TEST(Text, HasTheImportantThingFirst) {
  const Comparison comparison = everything();
  const std::string text =
      to_text(comparison, Details::kNone, Colour::kNever, 80);
  EXPECT_LE(widest_line(text), 80u) << text;
  for (const char* part : {"Step time", "Speed-up", "p10-p90", "Memory peak",
                           "Busy", "What this says", "--details also prints"}) {
    EXPECT_PRED2(contains, text, part);
  }
  for (const char* part : {"Where the time of a step goes", "Share of the",
                           "Total time", "DP against DDP"}) {
    EXPECT_FALSE(contains(text, part)) << part;
  }
  // Tables that are too wide are split, and repeat their first column.
  const size_t first = text.find("Set up ");
  const size_t devices = text.find("\nDevices\n");
  EXPECT_GT(text.find("Set up ", first + 1), devices) << text;
}

// Nobody should take kernels for parallelism.
TEST(Text, SaysHowMuchOfARatioIsThereOnOneDevice) {
  const std::string text =
      to_text(everything(), Details::kNone, Colour::kNever, 1000);
  EXPECT_PRED2(contains, text, "On one device, single is ");
}

TEST(Text, HasNoColourWhereThereIsNoTerminal) {
  EXPECT_FALSE(wants_colour(-1));
}

}  // namespace
}  // namespace lockstep::tools
