#include "lockstep/base/numbers.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ParseNumber, TakesAllOfATextOrNothing) {
  EXPECT_EQ(parse_number<double>("0.5"), 0.5);
  EXPECT_EQ(parse_number<double>("-1e-3"), -1e-3);
  EXPECT_EQ(parse_number<int>("12"), 12);
  for (const char* text : {"", "0,5", "0.5x", " 1", "1 ", "x"}) {
    EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<int>("5000000000"), std::nullopt);
}

}  // namespace
}  // namespace lockstep
