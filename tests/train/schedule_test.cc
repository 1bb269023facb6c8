#include <sstream>

#include <gtest/gtest.h>

#include "lockstep/train/plan.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep::train {
namespace {

std::vector<double> rates(const TrainOptions& options, int64_t steps,
                          int64_t steps_per_epoch) {
  std::vector<double> result;
  for (int64_t step = 0; step < steps; ++step) {
    result.push_back(learning_rate(
        options,
        {.step = step, .epoch = step / steps_per_epoch, .total_steps = steps}));
  }
  return result;
}

void expect_as_python(const std::vector<double>& rates,
                      const std::string& scheduler) {
  const std::string output = run_python(R"(
import sys, torch
from torch.optim.lr_scheduler import *
steps = int(sys.argv[1])
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
scheduler = )" + scheduler + R"(
for step in range(steps):
    print(repr(optimizer.param_groups[0]['lr']))
    optimizer.step()
    scheduler.step()
)",
                                        std::to_string(rates.size()));
  std::istringstream lines(output);
  for (size_t step = 0; step < rates.size(); ++step) {
    double expected = -1;
    ASSERT_TRUE(lines >> expected) << output;
    EXPECT_NEAR(rates[step], expected, 1e-12) << "step " << step;
  }
}

TEST(Schedule, OfSeed003IsTenthsByEpoch) {
  TrainOptions options;
  options.lr = 0.1;
  options.schedule = ScheduleKind::kSteps;
  options.milestones = {100, 150, 200};
  const auto at = [&](int64_t epoch) {
    return learning_rate(options, {.step = 0, .epoch = epoch});
  };
  EXPECT_DOUBLE_EQ(at(0), 0.1);
  EXPECT_DOUBLE_EQ(at(99), 0.1);
  EXPECT_DOUBLE_EQ(at(100), 0.01);
  EXPECT_DOUBLE_EQ(at(150), 0.001);
  EXPECT_DOUBLE_EQ(at(249), 0.0001);
}

TEST(Schedule, WarmsUpInAnyKind) {
  TrainOptions options;
  options.lr = 1;
  options.warmup_steps = 4;
  for (const auto kind :
       {ScheduleKind::kConstant, ScheduleKind::kSteps, ScheduleKind::kCosine}) {
    options.schedule = kind;
    const std::vector<double> lr = rates(options, 10, 10);
    EXPECT_DOUBLE_EQ(lr[0], 0.25);
    EXPECT_DOUBLE_EQ(lr[1], 0.5);
    EXPECT_DOUBLE_EQ(lr[3], 1);
    EXPECT_DOUBLE_EQ(lr[4], 1);
  }
}

TEST(Schedule, CosineStaysAtZeroPastItsEndAndNeverBelow) {
  TrainOptions options;
  options.schedule = ScheduleKind::kCosine;
  options.warmup_steps = 5;
  EXPECT_DOUBLE_EQ(learning_rate(options, {.step = 12, .total_steps = 10}), 0);
  EXPECT_GT(learning_rate(options, {.step = 4, .total_steps = 3}), 0);
}

TEST(ParitySchedule, StepsAreMultiStepLR) {
  TrainOptions options;
  options.schedule = ScheduleKind::kSteps;
  options.milestones = {3, 5, 5, 9};
  expect_as_python(rates(options, 12, 1),
                   "MultiStepLR(optimizer, [3, 5, 5, 9], 0.1)");
}

TEST(ParitySchedule, CosineIsCosineAnnealingLR) {
  TrainOptions options;
  options.schedule = ScheduleKind::kCosine;
  expect_as_python(rates(options, 50, 10), "CosineAnnealingLR(optimizer, 50)");
}

TEST(ParitySchedule, WarmUpAndCosineAreLinearLRAndThenCosineAnnealingLR) {
  TrainOptions options;
  options.schedule = ScheduleKind::kCosine;
  options.warmup_steps = 8;
  expect_as_python(rates(options, 50, 10),
                   "SequentialLR(optimizer, [LinearLR(optimizer, 1 / 8, 1, 7), "
                   "CosineAnnealingLR(optimizer, 42)], [8])");
}

}  // namespace
}  // namespace lockstep::train
