#include "lockstep/simulate/step.h"

#include <cmath>
#include <utility>

#include <gtest/gtest.h>

namespace lockstep::simulate {
namespace {

const Network kNetwork{.algorithm = Algorithm::kRing,
                       .ranks_per_host = 1,
                       .between = {.latency_s = 0, .bytes_per_s = 1e9}};

TEST(Step, HidesWhatTheOverlapLeavesTimeFor) {
  // Two ranks exchange 100 MB in 100 ms.
  Profile profile{.compute_s = 0.1, .gradient_bytes = 1e8};
  EXPECT_NEAR(simulate_step(profile, kNetwork, 2, 1).exposed_s, 0.1, 1e-12);
  profile.buckets = 10;
  profile.overlap = 0.5;
  auto step = simulate_step(profile, kNetwork, 2, 1);
  EXPECT_NEAR(step.exposed_s, 0.05, 1e-12);
  EXPECT_NEAR(step.step_s, 0.15, 1e-12);
  EXPECT_NEAR(step.efficiency, 2.0 / 3, 1e-12);
  profile.overlap = 1;  // the last bucket remains
  step = simulate_step(profile, kNetwork, 2, 1);
  EXPECT_NEAR(step.exposed_s, 0.01, 1e-12);
  EXPECT_NEAR(step.communication_s, 0.1, 1e-12);
}

TEST(Step, HasNoExchangeOnOneRank) {
  const Profile profile{.compute_s = 0.1,
                        .gradient_bytes = 1e8,
                        .stragglers = {.variation = 0.3}};
  const auto step = simulate_step(profile, kNetwork, 1, 1);
  EXPECT_EQ(step.step_s, 0.1);
  EXPECT_EQ(step.efficiency, 1);
}

// The mean of the largest of n standard normal variables, from Harter's table
// of order statistics (1961). With a small variation, a log-normal variable is
// nearly normal.
TEST(Stragglers, WaitAsLongAsOrderStatisticsSay) {
  const Stragglers small{.variation = 1e-4};
  for (const auto& [ranks, largest] :
       {std::pair{2, 0.56419}, {10, 1.53875}, {100, 2.50759}}) {
    EXPECT_NEAR((slowest_of(small, ranks, 1) - 1) / 1e-4, largest, 0.02)
        << ranks;
  }
  EXPECT_NEAR(slowest_of({}, 10'000, 1), 1, 1e-12);
}

TEST(Stragglers, AreAsManyAsTheShareOfSlowRanksGives) {
  // A step has a slow rank with probability 1 - 0.99^n.
  const Stragglers slow{.slow_share = 0.01, .slow_factor = 3};
  for (const int ranks : {1, 16, 64, 1000}) {
    const double with_slow = 1 - std::pow(0.99, ranks);
    EXPECT_NEAR(slowest_of(slow, ranks, 1) * 1.02, 1 + 2 * with_slow, 0.02)
        << ranks;
  }
}

TEST(Stragglers, FollowMeasuredTimes) {
  const Stragglers measured{.measured = {0.5, 1, 1.5}};
  // Uniform from 0.5 to 1.5: the largest of n is at n / (n + 1) on average.
  EXPECT_NEAR(slowest_of(measured, 3, 1), 0.5 + 0.75, 0.01);
  EXPECT_NEAR(slowest_of(measured, 10'000, 1), 1.5, 0.001);
}

TEST(Stragglers, AreTheSameForOneSeed) {
  const Stragglers wide{.variation = 0.3, .slow_share = 0.01, .slow_factor = 2};
  EXPECT_EQ(slowest_of(wide, 512, 7), slowest_of(wide, 512, 7));
  EXPECT_NE(slowest_of(wide, 512, 7), slowest_of(wide, 512, 8));
}

}  // namespace
}  // namespace lockstep::simulate
