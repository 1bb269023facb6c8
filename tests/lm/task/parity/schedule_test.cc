// Tier: nightly, by case. Language models.
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/tasks/optimizer_options.h"
#include "tests/checkpoint/python.h"

namespace lockstep::tasks {
namespace {

std::vector<double> rates(const OptimizerOptions& options, int64_t steps,
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

TEST(ScheduleAndPyTorch, StepsAreMultiStepLR) {
  OptimizerOptions options;
  options.schedule = ScheduleKind::kSteps;
  options.milestones = {3, 5, 5, 9};
  expect_as_python(rates(options, 12, 1),
                   "MultiStepLR(optimizer, [3, 5, 5, 9], 0.1)");
}

TEST(ScheduleAndPyTorch, CosineIsCosineAnnealingLR) {
  OptimizerOptions options;
  options.schedule = ScheduleKind::kCosine;
  expect_as_python(rates(options, 50, 10), "CosineAnnealingLR(optimizer, 50)");
}

TEST(ScheduleAndPyTorch, WarmUpAndCosineAreLinearLRAndThenCosineAnnealingLR) {
  OptimizerOptions options;
  options.schedule = ScheduleKind::kCosine;
  options.warmup_steps = 8;
  expect_as_python(rates(options, 50, 10),
                   "SequentialLR(optimizer, [LinearLR(optimizer, 1 / 8, 1, 7), "
                   "CosineAnnealingLR(optimizer, 42)], [8])");
}

}  // namespace
}  // namespace lockstep::tasks
