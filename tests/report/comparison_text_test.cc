#include "lockstep/report/comparison_text.h"

#include <algorithm>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/table.h"
#include "lockstep/base/terminal.h"
#include "lockstep/report/tables/comparison_sections.h"
#include "tests/report/canned.h"
#include "tests/report/texts.h"

namespace lockstep::report {
namespace {

TEST(Text, FitsATerminalAndHasNoColourUnlessAsked) {
  const std::string plain = to_text(canned_comparison(), Colour::kNever);
  EXPECT_FALSE(contains(plain, "\033"));
  EXPECT_TRUE(contains(plain,
                       "mlp (6,307,850 parameters), batch of 64, 2 "
                       "devices"));
  EXPECT_TRUE(contains(plain, "3 rounds of 30 steps"));
  EXPECT_TRUE(
      contains(to_text(canned_comparison(), Colour::kAlways), "\033[1m"));
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
    const std::string text = to_text(comparison, Colour::kNever, width);
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

TEST(Text, HasNoColourWhereThereIsNoTerminal) {
  EXPECT_FALSE(wants_colour(-1));
}

}  // namespace
}  // namespace lockstep::report
