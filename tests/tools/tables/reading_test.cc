#include <string>

#include <gtest/gtest.h>

#include "lockstep/tools/tables/comparison_sections.h"
#include "tests/tools/canned.h"
#include "tests/tools/canned_time_line.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

TEST(Headline, NamesAllModelsOfDifferentWork) {
  Comparison comparison = canned_comparison();
  EXPECT_EQ(headline(comparison),
            "mlp (6,307,850 parameters), batch of 64, 2 devices");
  comparison.runs[2].report.model = "cnn";
  EXPECT_EQ(headline(comparison),
            "4 runs with different work: mlp, cnn; 2 devices");
}

TEST(Reading, SaysWhichDeviceIsFullerAndByHowMuch) {
  const std::string text = joined(reading(canned_comparison()));
  EXPECT_TRUE(
      contains(text,
               "With dp-classic, cpu:0 uses the most memory: 80.0 MiB more "
               "than cpu:1, 3.0 times as much."))
      << text;
  EXPECT_TRUE(
      contains(text, "With dp, the devices use the same amount of memory"))
      << text;
}

TEST(Reading, SaysWhereTheBottleneckIs) {
  const std::string text = joined(reading(canned_comparison()));
  EXPECT_TRUE(contains(text,
                       "dp-classic spends 50 % of a step on forward and "
                       "backward, and 50 % on the rest (replicate 25 %, reduce "
                       "20 %, update 5 %)."))
      << text;
  EXPECT_TRUE(
      contains(text, "cpu:0 computes 90 % of the time and cpu:1 only 50"))
      << text;
}

TEST(Reading, CallsASpeedupWhatItIs) {
  const std::string text = joined(reading(canned_comparison()));
  EXPECT_TRUE(contains(
      text, "dp on 2 devices is faster than single: 1.50 times as fast ("))
      << text;
  EXPECT_TRUE(contains(text, "dp-classic on 2 devices is slower than single"))
      << text;
  EXPECT_TRUE(contains(text, "has all the cores of the host, too")) << text;
}

// Returns a comparison in which dp is faster in two rounds and slower in one.
Comparison undecided() {
  Comparison comparison = canned_comparison();
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
  EXPECT_EQ(set_up_section(undecided()).rows[2][2].substr(0, 7), "~1.02x ");
}

TEST(Reading, CallsNothingFasterAfterOneRound) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("single", {0.030}, 1)}),
                     pool(kLockstep, {canned_round("dp", {0.020})})};
  relate(comparison);
  const std::string text = joined(reading(comparison));
  EXPECT_TRUE(contains(text,
                       "dp on 2 devices was 1.50 times as fast as single; "
                       "with only one round of each, some of that"))
      << text;
  EXPECT_FALSE(contains(text, "faster")) << text;
  EXPECT_EQ(set_up_section(comparison).rows[1][2], "1.50x");
}

// All of them have two shards, so that the bits are the same. One device
// computes the shards one after another.
TEST(Reading, MeasuresSlicesAgainstTheirNumberWhereOneDeviceHasFewerThreads) {
  Comparison comparison = canned_comparison();
  comparison.runs.front().report.shards = 2;
  comparison.runs.front().report.intra_op_threads = 1;
  const std::string text = joined(reading(comparison));
  EXPECT_TRUE(contains(text, "75 % of the 2 that would be proportional"))
      << text;
  EXPECT_TRUE(contains(text,
                       "single computes its 2 shards one after another, each "
                       "with 1 thread; 2 slices compute as many at once, so "
                       "proportional would be 2"))
      << text;
  EXPECT_FALSE(contains(text, "all the cores of the host")) << text;
}

TEST(Reading, MeasuresGpusAgainstTheirNumber) {
  Comparison comparison = canned_comparison();
  for (auto& run : comparison.runs) {
    for (size_t k = 0; k < run.report.devices.size(); ++k) {
      run.report.devices[k].name = "cuda:" + std::to_string(k);
    }
  }
  EXPECT_TRUE(contains(joined(reading(comparison)),
                       "75 % of the 2 that would be proportional"));
}

TEST(TimeLineReading, SaysWhatCommunicationTakesAndHides) {
  std::string all;
  for (const auto& sentence : reading(canned_ddp())) all += sentence + "\n";
  EXPECT_PRED2(contains, all,
               "A typical step of ddp, 40.0 ms: a rank spends 7.00 ms of it "
               "(18 %) with other ranks, 4.00 ms of that waiting for them; 36 "
               "% of it is hidden behind computing.");
}

}  // namespace
}  // namespace lockstep::tools
