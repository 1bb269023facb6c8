#include "lockstep/train/metrics.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

TEST(CountCorrect, CountsRowsWhoseTargetIsGreatest) {
  const auto logits = torch::tensor({{1.f, 2.f}, {3.f, 0.f}, {0.f, 1.f}});
  const auto targets = torch::tensor({1, 1, 1}, torch::kInt64);
  EXPECT_EQ(count_correct(logits, targets), 2);
}

TEST(RunningMean, WeighsBatchesByTheirSamples) {
  RunningMean mean;
  EXPECT_EQ(mean.loss(), 0);
  mean.add(1.0, 3, 3);
  mean.add(5.0, 0, 1);
  EXPECT_DOUBLE_EQ(mean.loss(), 2.0);
  EXPECT_DOUBLE_EQ(mean.accuracy(), 0.75);
  EXPECT_EQ(mean.samples(), 4);
}

}  // namespace
}  // namespace lockstep::train
