#include "lockstep/report/rendering.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/base/table.h"
#include "lockstep/report/canvas.h"
#include "lockstep/report/sections.h"
#include "tests/report/canned.h"

namespace lockstep::report {
namespace {

// Three rounds that differ by a percent.
std::vector<Measurement> three_rounds(const std::string& strategy,
                                      double step_s, size_t devices = 2) {
  return {canned_round(strategy, {step_s}, devices),
          canned_round(strategy, {0.99 * step_s}, devices),
          canned_round(strategy, {1.01 * step_s}, devices)};
}

// single 30 ms, dp-classic 40 ms with a full first device, dp 20 ms, DDP 50.
Comparison practical() {
  Comparison comparison;
  comparison.runs = {
      pool(kLockstep, three_rounds("single", 0.030, 1)),
      pool(kLockstep, three_rounds("dp-classic", 0.040)),
      pool(kLockstep, three_rounds("dp", 0.020)),
      pool(kPyTorch, three_rounds("ddp", 0.050)),
  };
  auto& classic = comparison.runs[1].report;
  classic.devices[0].memory_peak_bytes = 120 << 20;
  classic.devices[1].memory_peak_bytes = 40 << 20;
  classic.devices[1].busy_fraction = 0.5;
  classic.memory_shared_bytes = 0;
  classic.parameter_bytes = 8 * classic.parameters;
  classic.phases_s = {.replicate = 0.010,
                      .forward = 0.010,
                      .backward = 0.010,
                      .reduce = 0.008,
                      .update = 0.002};
  comparison.runs[3].report.devices.clear();
  comparison.runs[3].report.phases_s = {};
  comparison.steps = 30;
  comparison.warmup = 5;
  comparison.rounds = 3;
  comparison.machine = {.cores = 2, .cpu_model = "A <fast> CPU"};
  relate(comparison);
  return comparison;
}

std::string joined(const std::vector<std::string>& sentences) {
  std::string text;
  for (const auto& sentence : sentences) text += sentence + "\n";
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Sections, FillThePracticalsTable) {
  const Section section = set_up_section(practical());
  ASSERT_EQ(section.rows.size(), 4u);
  EXPECT_EQ(section.rows[0][0], "single");
  EXPECT_EQ(section.rows[0][1], "30.0 ms");
  EXPECT_EQ(section.header[4], "Speed-up (95 %)");
  EXPECT_EQ(section.rows[0][2], "29.8-30.2 ms");
  EXPECT_EQ(section.rows[0][4], "1.00x");
  EXPECT_EQ(section.rows[2][0], "dp");
  EXPECT_EQ(section.rows[2][4], "1.50x (1.50-1.50)");
  EXPECT_EQ(section.rows[2][5], "3200");
  EXPECT_EQ(section.rows[2][6], "1");
  EXPECT_EQ(section.rows[3][0], "PyTorch DDP");
}

TEST(Sections, GiveEveryDeviceARowAndSharedMemoryOne) {
  const Section section = device_section(practical());
  ASSERT_EQ(section.rows.size(), 2u + 2u + 3u);
  EXPECT_EQ(section.rows[2],
            (std::vector<std::string>{"dp-classic", "cpu:0", "32", "120.0 MiB",
                                      "90 %"}));
  EXPECT_EQ(section.rows[3][3], "40.0 MiB");
  EXPECT_EQ(section.rows[6], (std::vector<std::string>{"", "shared by all", "",
                                                       "50.0 MiB", ""}));
}

TEST(Sections, ShowPhasesOfThoseRunsThatHaveSome) {
  const Section section = phase_section(practical(), 0);
  EXPECT_EQ(section.header,
            (std::vector<std::string>{"Phase", "single", "dp-classic", "dp"}));
  ASSERT_EQ(section.rows.size(), kPhases.size() + 2);
  EXPECT_EQ(section.rows[1][0], "replicate");
  EXPECT_EQ(section.rows[1][1], "-");
  EXPECT_EQ(section.rows[1][2], "10.0 ms   25 %");
}

// As they are printed: each cell is rounded to three digits.
TEST(Sections, HavePhasesThatAddUpToTheStep) {
  const Section section = phase_section(practical(), 0);
  EXPECT_EQ(section.rows[section.rows.size() - 2][0], "other");
  EXPECT_EQ(section.rows.back()[0], "mean step");
  for (size_t column = 1; column < section.header.size(); ++column) {
    double sum_ms = 0;
    for (const auto& row : section.rows) {
      if (row[0] != "mean step" && row[column] != "-") {
        EXPECT_TRUE(contains(row[column], " ms")) << row[column];
        sum_ms += std::stod(row[column]);
      }
    }
    EXPECT_NEAR(sum_ms, std::stod(section.rows.back()[column]), 0.1);
  }
  EXPECT_EQ(section.rows.back()[1], "30.0 ms  100 %");
  EXPECT_EQ(section.rows[section.rows.size() - 2][1], "3.00 ms   10 %");
}

TEST(Sections, CompareWithPyTorchOnlyWhereItRan) {
  Comparison comparison = practical();
  const Section section = ratio_section(comparison);
  ASSERT_EQ(section.rows.size(), 3u);
  EXPECT_EQ(section.rows[2],
            (std::vector<std::string>{"dp", "2.50x (2.50-2.50)"}));
  comparison.runs.pop_back();
  EXPECT_TRUE(ratio_section(comparison).rows.empty());
}

TEST(Reading, SaysWhichDeviceIsFullerAndByHowMuch) {
  const std::string text = joined(reading(practical()));
  EXPECT_TRUE(contains(text,
                       "Under dp-classic cpu:0 is the fullest: 80.0 MiB more "
                       "than cpu:1, 3.0 times as much."))
      << text;
  EXPECT_TRUE(contains(text, "Under dp the devices are equally full")) << text;
}

TEST(Reading, SaysWhereTheBottleneckIs) {
  const std::string text = joined(reading(practical()));
  EXPECT_TRUE(contains(text,
                       "dp-classic spends 50 % of a step on forward and "
                       "backward, and 50 % on the rest (replicate 25 %, reduce "
                       "20 %, update 5 %)."))
      << text;
  EXPECT_TRUE(contains(text, "cpu:0 works 90 % of the time and cpu:1 only 50"))
      << text;
}

TEST(Reading, CallsASpeedupWhatItIs) {
  const std::string text = joined(reading(practical()));
  EXPECT_TRUE(contains(
      text, "dp on 2 devices is faster than single: 1.50 times as fast ("))
      << text;
  EXPECT_TRUE(contains(text, "dp-classic on 2 devices is slower than single"))
      << text;
  EXPECT_TRUE(contains(text, "has all the cores of the host as well")) << text;
}

// dp is faster in two rounds and slower in one.
Comparison undecided() {
  Comparison comparison = practical();
  comparison.runs[2] = pool(
      kLockstep, {canned_round("dp", {0.029}), canned_round("dp", {0.0285}),
                  canned_round("dp", {0.031})});
  relate(comparison);
  return comparison;
}

TEST(Reading, CallsNothingFasterThatMayBeChance) {
  const std::string text = joined(reading(undecided()));
  EXPECT_TRUE(contains(
      text, "dp on 2 devices and single: no difference that 3 rounds can show"))
      << text;
  EXPECT_FALSE(contains(text, "dp on 2 devices is")) << text;
  EXPECT_EQ(set_up_section(undecided()).rows[2][4].substr(0, 7), "~1.02x ");
}

TEST(Reading, CallsNothingFasterAfterOneRound) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("single", {0.030}, 1)}),
                     pool(kLockstep, {canned_round("dp", {0.020})})};
  relate(comparison);
  const std::string text = joined(reading(comparison));
  EXPECT_TRUE(contains(text,
                       "dp on 2 devices was 1.50 times as fast as single; "
                       "with one round of each it is not known"))
      << text;
  EXPECT_FALSE(contains(text, "faster")) << text;
  EXPECT_EQ(set_up_section(comparison).rows[1][4], "1.50x");
}

TEST(Reading, MeasuresGpusAgainstTheirNumber) {
  Comparison comparison = practical();
  for (auto& run : comparison.runs) {
    for (size_t k = 0; k < run.report.devices.size(); ++k) {
      run.report.devices[k].name = "cuda:" + std::to_string(k);
    }
  }
  EXPECT_TRUE(contains(joined(reading(comparison)),
                       "75 % of the 2 that would be proportional"));
}

TEST(Text, FitsATerminalAndHasNoColourUnlessAsked) {
  const std::string plain = to_text(practical(), Colour::kNever);
  EXPECT_FALSE(contains(plain, "\033"));
  EXPECT_TRUE(contains(plain,
                       "mlp (6,307,850 parameters), batch of 64, 2 "
                       "devices"));
  EXPECT_TRUE(contains(plain, "3 rounds of 30 steps"));
  EXPECT_TRUE(contains(to_text(practical(), Colour::kAlways), "\033[1m"));
}

// Everything that a comparison shows, with the longest names that there are.
Comparison everything() {
  Comparison comparison = practical();
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
  EXPECT_EQ(colour_of(-1), Colour::kNever);
}

TEST(Html, StandsAloneAndEscapesWhatItShows) {
  const std::string html = to_html(practical());
  for (const char* outside : {"href", "src=", "@import", "url(", "<script"}) {
    EXPECT_FALSE(contains(html, outside)) << outside;
  }
  EXPECT_TRUE(contains(html, "A &lt;fast&gt; CPU"));
  EXPECT_FALSE(contains(html, "<fast>"));
  EXPECT_TRUE(contains(html, "prefers-color-scheme: dark"));
}

TEST(Html, ShowsTheSameFiguresAsTheTerminal) {
  const Comparison comparison = practical();
  const std::string html = to_html(comparison);
  for (const Section& section :
       {set_up_section(comparison), device_section(comparison),
        phase_section(comparison, 0), ratio_section(comparison)}) {
    for (const auto& row : section.rows) {
      for (const auto& cell : row) {
        EXPECT_TRUE(contains(html, "<td>" + escaped(cell) + "</td>")) << cell;
      }
    }
  }
}

// The pictures and the page as an XML parser sees them: one we did not write.
TEST(Svg, IsWellFormedXml) {
  const std::string python = LOCKSTEP_TEST_PYTHON;
  if (python.empty()) GTEST_SKIP() << "the build knows no Python";
  const std::string path = testing::TempDir() + "lockstep_picture.svg";
  for (const std::string& svg :
       {picture(practical()), phase_chart(practical()),
        memory_chart(practical()), step_time_chart(practical())}) {
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
  Comparison comparison = practical();
  comparison.runs = {comparison.runs[3]};
  relate(comparison);
  EXPECT_EQ(memory_chart(comparison), "");
  EXPECT_EQ(phase_chart(comparison), "");
  EXPECT_NE(step_time_chart(comparison), "");
}

TEST(Svg, EscapesTheFiveCharactersOfXml) {
  EXPECT_EQ(escaped("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
}

}  // namespace
}  // namespace lockstep::report
