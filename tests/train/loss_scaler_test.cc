#include "lockstep/train/state/loss_scaler.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::training {
namespace {

TEST(LossScaler, HalvesAfterAnOverflowAndDoublesAfterTwoThousandGoodSteps) {
  LossScaler scaler;
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 16384);
  for (int step = 0; step < 2000; ++step) EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(LossScaler, GivesUpWhereASmallerScaleCuresNothing) {
  LossScaler scaler;
  for (int step = 0; step < 16; ++step) EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.update(false));
}

// A loss of 1,000 tokens a sample overflows once, and not ten times.
TEST(LossScaler, FallsAtOnceToTheScaleOfAMeanOverSamples) {
  LossScaler scaler;
  EXPECT_TRUE(scaler.update(false, 1000));
  EXPECT_EQ(scaler.scale(), 64);
  EXPECT_TRUE(scaler.update(false, 1000));
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, FallsBelowOneForLossesOfManyUnits) {
  // The pixels of a picture of 512 x 512.
  constexpr double kPixels = 262144;
  LossScaler scaler;
  EXPECT_TRUE(scaler.update(false, kPixels));
  EXPECT_EQ(scaler.scale(), 0.25);
  LossScaler loaded;
  loaded.load_state(scaler.state());
  EXPECT_EQ(loaded.scale(), 0.25);
  for (int step = 0; step < 16; ++step) {
    EXPECT_TRUE(loaded.update(false, kPixels));
  }
  EXPECT_FALSE(loaded.update(false, kPixels));
}

TEST(LossScaler, OnlyHalvesAScaleThatHasGrown) {
  LossScaler scaler;
  for (int step = 0; step < 6000; ++step) scaler.update(true, 1000);
  EXPECT_EQ(scaler.scale(), 65536 * 8);
  EXPECT_TRUE(scaler.update(false, 1000));
  EXPECT_EQ(scaler.scale(), 65536 * 4);
}

TEST(LossScaler, RefusesStateThatCanNotBe) {
  for (const double scale : {0.0, -1.0, 0x1p41}) {
    LossScaler scaler;
    OptimizerState state = scaler.state();
    state["scale"] = torch::tensor(scale, torch::kFloat64);
    EXPECT_THROW(scaler.load_state(state), CheckpointError) << scale;
  }
}

}  // namespace
}  // namespace lockstep::training
