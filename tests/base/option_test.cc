#include "lockstep/base/option.h"

#include <cmath>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Range, ContainsItsEndsUnlessTheyAreExcluded) {
  EXPECT_TRUE(between(1, 4).contains(1));
  EXPECT_TRUE(between(1, 4).contains(4));
  EXPECT_FALSE(between(1, 4).contains(5));
  EXPECT_FALSE(above(0).contains(0));
  const Range fraction{.least = 0, .most = 1, .excludes_most = true};
  EXPECT_TRUE(fraction.contains(0.99));
  EXPECT_FALSE(fraction.contains(1));
  EXPECT_FALSE(at_least(0).contains(std::nan("")));
  EXPECT_FALSE(at_least(0).contains(INFINITY));
}

TEST(Range, IsDescribed) {
  EXPECT_EQ(at_least(1).text(true), "a whole number of at least 1");
  EXPECT_EQ(between(0, 4096).text(true), "a whole number from 0 to 4096");
  EXPECT_EQ(above(0).text(false), "a number above 0");
  EXPECT_EQ(between(0, 2).text(false), "a number of at least 0 and at most 2");
  const Range fraction{.least = 0, .most = 1, .excludes_most = true};
  EXPECT_EQ(fraction.text(false), "a number of at least 0 and below 1");
}

TEST(Option, AcceptsNumbersInItsRangeOnly) {
  int64_t count = 64;
  const Option option{
      .name = "--count", .value = &count, .help = "", .range = at_least(1)};
  EXPECT_EQ(refusal(option, "1"), "");
  for (const char* text :
       {"0", "-1", "x", "", "1.5", "1 ", " 1", "+1", "9223372036854775808"}) {
    EXPECT_EQ(refusal(option, text),
              std::string("expected a whole number of at least 1, got '") +
                  text + "'");
  }
  set_value(option, "7");
  EXPECT_EQ(count, 7);
  EXPECT_EQ(value_text(option), "7");
  count = 0;
  EXPECT_FALSE(is_in_range(option));
}

TEST(Option, HasADecimalPoint) {
  std::optional<double> rate;
  const Option option{
      .name = "--rate", .value = &rate, .help = "", .range = above(0)};
  EXPECT_EQ(value_text(option), "");
  EXPECT_TRUE(is_in_range(option));
  EXPECT_NE(refusal(option, "0,5"), "");
  EXPECT_NE(refusal(option, "nan"), "");
  EXPECT_NE(refusal(option, "inf"), "");
  set_value(option, "0.5");
  EXPECT_EQ(rate, 0.5);
  EXPECT_EQ(value_text(option), "0.5");
}

TEST(Option, SuggestsTheNearestWord) {
  std::string backend = "auto";
  const Option option{.name = "--backend",
                      .value = &backend,
                      .help = "",
                      .words = {"auto", "shm", "tcp"},
                      .former_words = {"gloo"}};
  EXPECT_EQ(refusal(option, "tcp"), "");
  EXPECT_EQ(refusal(option, "gloo"), "");
  EXPECT_EQ(refusal(option, "atuo"),
            "expected one of auto, shm, tcp, got 'atuo'; did you mean 'auto'?");
}

TEST(Option, TakesANumberOrAWord) {
  std::string threads = "auto";
  const Option option{.name = "--threads",
                      .value = &threads,
                      .help = "",
                      .range = between(1, 4096),
                      .words = {"auto"}};
  EXPECT_EQ(refusal(option, "auto"), "");
  EXPECT_EQ(refusal(option, "12"), "");
  EXPECT_EQ(refusal(option, "0"),
            "expected a whole number from 1 to 4096, or one of auto, got '0'");
}

TEST(Option, ListsNumbers) {
  std::vector<int64_t> epochs{1};
  const Option option{
      .name = "--epochs", .value = &epochs, .help = "", .range = at_least(1)};
  EXPECT_TRUE(is_list(option));
  set_value(option, "4,9,14");
  EXPECT_EQ(epochs, (std::vector<int64_t>{4, 9, 14}));
  EXPECT_EQ(value_text(option), "4,9,14");
  EXPECT_TRUE(is_in_range(option));
  epochs.push_back(0);
  EXPECT_FALSE(is_in_range(option));
}

TEST(Option, CanTurnSomethingOff) {
  bool enabled = true;
  const Option option{.name = "--no-eval",
                      .value = Switch{.is_on = [&] { return !enabled; },
                                      .turn = [&](bool on) { enabled = !on; }},
                      .help = ""};
  EXPECT_TRUE(is_flag(option));
  EXPECT_EQ(value_text(option), "false");
  set_value(option, "true");
  EXPECT_FALSE(enabled);
  EXPECT_EQ(value_text(option), "true");
  EXPECT_EQ(key_of(option), "no_eval");
}

}  // namespace
}  // namespace lockstep
