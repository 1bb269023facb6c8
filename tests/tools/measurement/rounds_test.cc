#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/tools/measurement/comparison_rounds.h"
#include "lockstep/tools/tables/comparison_sections.h"
#include "tests/tools/canned.h"

namespace lockstep::tools::rounds_test {
namespace {

const std::vector<Contender> kTwo{{kLockstep, "single"}, {kLockstep, "dp"}};

// Contenders that take a given time, with some percent of random variation.
class FakeMachine {
 public:
  FakeMachine(std::vector<double> step_times_s, double noise, uint64_t seed)
      : step_times_s_(std::move(step_times_s)),
        random_(seed),
        noise_(0, noise) {}

  MeasureRound measure() {
    return [this](size_t contender, int64_t round) {
      order.push_back({round, contender});
      const double step_s =
          step_times_s_[contender] * std::exp(noise_(random_));
      return canned_round(contender == 0 ? "single" : "dp", {step_s});
    };
  }

  std::vector<std::pair<int64_t, size_t>> order;

 private:
  std::vector<double> step_times_s_;
  std::mt19937_64 random_;
  std::normal_distribution<double> noise_;
};

TEST(Rounds, EndAtTheLeastWhereTheDifferenceIsClear) {
  FakeMachine machine({0.030, 0.010}, 0.01, 1);
  std::vector<std::string> told;
  const Comparison comparison =
      measure_rounds(kTwo, {}, machine.measure(),
                     [&](const std::string& why) { told.push_back(why); });
  EXPECT_EQ(comparison.rounds, 3);
  EXPECT_TRUE(told.empty());
  EXPECT_TRUE(comparison.runs[1].speedup->is_clear());
  EXPECT_NEAR(comparison.runs[1].speedup->times, 3, 0.1);
}

TEST(Rounds, GoOnToTheMostWhereThereIsNoneAndSaySo) {
  FakeMachine machine({0.030, 0.030}, 0.01, 2);
  std::vector<std::string> told;
  const Comparison comparison =
      measure_rounds(kTwo, {}, machine.measure(),
                     [&](const std::string& why) { told.push_back(why); });
  EXPECT_EQ(comparison.rounds, 10);
  EXPECT_EQ(comparison.runs[0].round_medians_s.size(), 10u);
  ASSERT_EQ(told.size(), 3u);  // after 3, 5 and 8
  EXPECT_EQ(
      told[0].find("after 3 rounds it is not clear whether dp or single is "
                   "faster ("),
      0u)
      << told[0];
  EXPECT_NE(told[0].find("2 more rounds"), std::string::npos) << told[0];
  EXPECT_NE(told[2].find("after 8 rounds"), std::string::npos) << told[2];
  bool has_said_so = false;
  for (const auto& sentence : reading(comparison)) {
    if (sentence.find("no difference that 10 rounds can show") !=
        std::string::npos) {
      has_said_so = true;
    }
    EXPECT_EQ(sentence.find("faster"), std::string::npos) << sentence;
  }
  EXPECT_TRUE(has_said_so);
}

TEST(Rounds, AreAsManyAsTheUserAsksFor) {
  for (const int64_t rounds : {1, 2, 5}) {
    FakeMachine machine({0.030, 0.010}, 0.01, 3);
    const Comparison comparison = measure_rounds(
        kTwo, {.least = rounds, .most = rounds}, machine.measure(),
        [](const std::string& why) { ADD_FAILURE() << why; });
    EXPECT_EQ(comparison.rounds, rounds);
    EXPECT_DOUBLE_EQ(comparison.confidence, 0.95);
  }
}

TEST(Rounds, BeginWithAnotherContenderEachAfterOneRunThatIsNotCounted) {
  FakeMachine machine({0.030, 0.010}, 0.01, 4);
  const Comparison comparison =
      measure_rounds(kTwo, {.least = 2, .most = 2}, machine.measure(),
                     [](const std::string&) {});
  const std::vector<std::pair<int64_t, size_t>> expected{
      {0, 0}, {1, 0}, {1, 1}, {2, 1}, {2, 0}};
  EXPECT_EQ(machine.order, expected);
  EXPECT_EQ(comparison.runs[0].round_medians_s.size(), 2u);
}

TEST(Rounds, WaitForAVerdictAgainstPyTorchButNotAgainstItsBound) {
  const std::vector<Contender> contenders{
      {kLockstep, "single"}, {kPyTorch, "ideal"}, {kPyTorch, "ddp"}};
  std::vector<std::string> told;
  const Comparison comparison = measure_rounds(
      contenders, {},
      [&](size_t contender, int64_t) {
        return canned_round(contenders[contender].strategy, {0.03});
      },
      [&](const std::string& why) { told.push_back(why); });
  ASSERT_FALSE(told.empty());
  EXPECT_NE(told[0].find("single or PyTorch DDP is faster"), std::string::npos)
      << told[0];
  EXPECT_EQ(told[0].find("ideal"), std::string::npos) << told[0];
}

// Compares the same thing under two names. The whole procedure, with all its
// checks, calls one of them faster at most as often as it promises: 2000
// comparisons, and three standard deviations above 5 %.
TEST(Rounds, SeldomFindADifferenceThatIsNotThere) {
  constexpr int kTrials = 2000;
  int wrong = 0;
  for (int seed = 0; seed < kTrials; ++seed) {
    FakeMachine machine({0.030, 0.030}, 0.03, static_cast<uint64_t>(seed));
    const Comparison comparison =
        measure_rounds(kTwo, {}, machine.measure(), [](const std::string&) {});
    if (comparison.runs[1].speedup->is_clear()) ++wrong;
  }
  const double rate = static_cast<double>(wrong) / kTrials;
  EXPECT_LE(rate, kVerdictError + 3 * std::sqrt(0.05 * 0.95 / kTrials));
  // An interval that is never clear would be honest but useless.
  EXPECT_GT(rate, 0.005);
  RecordProperty("false_verdicts", wrong);
}

}  // namespace
}  // namespace lockstep::tools::rounds_test
