#include "lockstep/tools/charts/axis.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::tools {
namespace {

TEST(Marks, AreRoundNumbersWithinTheAxis) {
  EXPECT_EQ(marks_between(0.9, 3.2, 5),
            (std::vector<double>{1, 1.5, 2, 2.5, 3}));
  EXPECT_EQ(marks_between(-1, 1, 4),
            (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(marks_between(7, 7, 5), std::vector<double>{7});
}

// Neighbouring numbers differ by two there, so counting in steps of 0.5 would
// never end.
TEST(Marks, EndWhereNumbersAreTooLargeToBeCounted) {
  EXPECT_LE(marks_between(1e16, 1e16 + 2, 5).size(), 7u);
  const double most = std::numeric_limits<double>::max();
  EXPECT_LE(marks_between(-most, most, 5).size(), 7u);
}

TEST(Marks, BeginAtZeroOnATimeAxis) {
  EXPECT_EQ(marks_between(0, 0.040, 5),
            (std::vector<double>{0, 0.01, 0.02, 0.03, 0.04}));
  EXPECT_EQ(marks_between(0, 0.011, 5).size(), 3u);  // marks at 0, 5, 10 ms
  EXPECT_EQ(marks_between(0, 0, 5), std::vector<double>{0});
  EXPECT_EQ(mark_label(0.0025), "2.5");
  EXPECT_EQ(mark_label(1.2), "1200");
}

}  // namespace
}  // namespace lockstep::tools
