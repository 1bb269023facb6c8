#include "lockstep/tools/comparison/speed_ratio.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::tools {
namespace {

// Returns the ratio of two rounds with these logarithms. They have mean 0 and
// standard deviation 1, so the interval is as wide as the quantile of t.
SpeedRatio ratio_from_logarithms(const std::vector<double>& logarithms,
                                 double confidence) {
  std::vector<double> ours, theirs;
  for (const double value : logarithms) {
    ours.push_back(1);
    theirs.push_back(std::exp(value));
  }
  return speed_ratio(ours, theirs, confidence);
}

// NIST's handbook (1.3.6.7.2) has a table of Student's t. For 0.975 it
// is 12.706 with 1, 4.303 with 2 and 2.262 with 9 degrees of freedom. For 0.995
// it is 9.925 with 2.
TEST(SpeedRatio, HasStudentsInterval) {
  const double root = std::sqrt(0.5);  // {root, -root} has deviation 1
  EXPECT_NEAR(
      std::log(ratio_from_logarithms({root, -root}, 0.95).interval->high),
      12.706 / std::sqrt(2), 1e-3);
  EXPECT_NEAR(std::log(ratio_from_logarithms({1, 0, -1}, 0.95).interval->high),
              4.303 / std::sqrt(3), 1e-3);
  EXPECT_NEAR(std::log(ratio_from_logarithms({1, 0, -1}, 0.99).interval->low),
              -9.925 / std::sqrt(3), 1e-3);
  const double nine = std::sqrt(9.0 / 10);
  EXPECT_NEAR(std::log(ratio_from_logarithms({nine, -nine, nine, -nine, nine,
                                              -nine, nine, -nine, nine, -nine},
                                             0.95)
                           .interval->high),
              2.262 / std::sqrt(10), 1e-3);
}

TEST(SpeedRatio, IsTheGeometricMeanOfTheRounds) {
  const std::vector<double> ours{1, 1}, theirs{2, 8};
  EXPECT_NEAR(speed_ratio(ours, theirs, 0.95).times, 4, 1e-12);
  // In the other direction, the ratio and the interval are the inverse.
  const SpeedRatio inverse = speed_ratio(theirs, ours, 0.95);
  EXPECT_NEAR(inverse.times, 0.25, 1e-12);
  EXPECT_NEAR(
      inverse.interval->low * speed_ratio(ours, theirs, 0.95).interval->high, 1,
      1e-12);
}

TEST(SpeedRatio, IsNotClearOfOneRoundOrNone) {
  const std::vector<double> one{1}, other{2}, none, zero{0, 1};
  EXPECT_FALSE(speed_ratio(one, other, 0.95).interval);
  EXPECT_FALSE(speed_ratio(one, other, 0.95).is_clear());
  EXPECT_FALSE(speed_ratio(none, none, 0.95).interval);
  EXPECT_EQ(speed_ratio(zero, zero, 0.95).times, 0);
}

TEST(SpeedRatio, CoversTheTruthAsOftenAsItSays) {
  constexpr int kTrials = 4000;
  for (const int rounds : {2, 3, 5, 10}) {
    std::mt19937_64 random(static_cast<uint64_t>(rounds));
    std::normal_distribution<double> noise(0, 0.03);
    int wrong = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> ours, theirs;
      for (int round = 0; round < rounds; ++round) {
        // The machine drifts. The rest is noise.
        const double drift = std::exp(10 * noise(random));
        ours.push_back(drift * std::exp(noise(random)));
        theirs.push_back(drift * std::exp(noise(random)));
      }
      if (speed_ratio(ours, theirs, 0.95).is_clear()) ++wrong;
    }
    // Three standard deviations around 5 %.
    EXPECT_NEAR(static_cast<double>(wrong) / kTrials, 0.05, 0.0104) << rounds;
  }
}

TEST(LookRounds, GrowByHalf) {
  EXPECT_EQ(verdict_rounds(3, 10), (std::vector<int64_t>{3, 5, 8, 10}));
  EXPECT_EQ(verdict_rounds(3, 3), std::vector<int64_t>{3});
  EXPECT_EQ(verdict_rounds(3, 4), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(verdict_rounds(1, 4), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(Confidence, IsSharedByTheLooks) {
  EXPECT_DOUBLE_EQ(confidence_of_verdict(1), 0.95);
  EXPECT_DOUBLE_EQ(confidence_of_verdict(4), 0.9875);
}

TEST(RatioText, SaysWhatMayBeChance) {
  EXPECT_EQ(cell_text({.times = 1.12, .interval = Interval{1.08, 1.17}}),
            "1.12x (1.08-1.17)");
  EXPECT_EQ(cell_text({.times = 1.02, .interval = Interval{0.97, 1.06}}),
            "~1.02x (0.97-1.06)");
  EXPECT_EQ(cell_text({.times = 1.5, .interval = {}}), "1.50x");
  EXPECT_EQ(times_text({.times = 1.12, .interval = Interval{1.08, 1.17}}),
            "1.12 times as fast (1.08 to 1.17)");
}

TEST(RatioText, ShowsThatAnIntervalIsWithoutOne) {
  EXPECT_EQ(cell_text({.times = 1.008, .interval = Interval{1.0021, 1.014}}),
            "1.008x (1.002-1.014)");
  EXPECT_EQ(cell_text({.times = 0.99, .interval = Interval{0.98, 0.99964}}),
            "0.9900x (0.9800-0.9996)");
}

}  // namespace
}  // namespace lockstep::tools
