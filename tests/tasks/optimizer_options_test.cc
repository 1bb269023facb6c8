#include "lockstep/tasks/optimizer_options.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"

namespace lockstep::tasks {
namespace {

TEST(OptimizerOptions, RefuseNumbersThatCanNotBe) {
  for (const double lr :
       {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_problem(error_of<InvalidArgument>([&] { check({.lr = lr}); }),
                   ErrorCode::kBadOption, {"lr"});
  }
  expect_problem(error_of<InvalidArgument>([] { check({.warmup_steps = -1}); }),
                 ErrorCode::kBadOption, {"warmup_steps", "-1"});
  expect_problem(error_of<InvalidArgument>([] { check({.weight_decay = -1}); }),
                 ErrorCode::kBadOption, {"weight_decay"});
  expect_problem(error_of<InvalidArgument>([] { check({.momentum = -1}); }),
                 ErrorCode::kBadOption, {"momentum"});
  expect_problem(error_of<InvalidArgument>(
                     [] { check({.momentum = 0, .nesterov = true}); }),
                 ErrorCode::kBadOption, {"Nesterov", "momentum"});
  expect_problem(error_of<InvalidArgument>([] {
                   check({.optimizer = OptimizerKind::kAdamW, .beta2 = 1});
                 }),
                 ErrorCode::kBadOption, {"beta2"});
}

// Checkpoints have the state of matrices first.
TEST(MakeOptimizer, ListsMatricesFirstAndDecaysNothingElse) {
  const torch::Tensor bias = torch::ones({3}).requires_grad_();
  const torch::Tensor weight = torch::ones({2, 3}).requires_grad_();
  const auto optimizer = make_optimizer({.optimizer = OptimizerKind::kAdamW,
                                         .lr = 0.1,
                                         .weight_decay = 0.5,
                                         .decays_matrices_alone = true},
                                        {bias, weight}, {});
  for (const torch::Tensor& parameter : {bias, weight}) {
    parameter.mutable_grad() = torch::zeros_like(parameter.detach());
  }
  optimizer->step();
  EXPECT_TRUE(bias.eq(1).all().item<bool>());
  EXPECT_TRUE(weight.allclose(torch::full({2, 3}, 0.95)));
  EXPECT_EQ(optimizer->state_dict().at("exp_avg.0").sizes(), weight.sizes());
}

TEST(MakeOptimizer, StartsMomentumFromZerosOfWhichCheckpointsHaveNoList) {
  const torch::Tensor weight = torch::ones({2, 3}).requires_grad_();
  const auto optimizer = make_optimizer({}, {weight}, {});
  EXPECT_EQ(optimizer->state_dict().size(), 1);
  weight.mutable_grad() = torch::ones({2, 3});
  optimizer->load_state_dict(optimizer->state_dict());
  optimizer->step();
  const OptimizerState state = optimizer->state_dict();
  EXPECT_EQ(state.size(), 1);
  EXPECT_TRUE(state.contains("momentum_buffer.0"));
}

TEST(Schedule, OfSeed003IsTenthsByEpoch) {
  OptimizerOptions options;
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
  OptimizerOptions options;
  options.lr = 1;
  options.warmup_steps = 4;
  for (const auto kind :
       {ScheduleKind::kConstant, ScheduleKind::kSteps, ScheduleKind::kCosine}) {
    options.schedule = kind;
    const auto lr = [&](int64_t step) {
      return learning_rate(options, {.step = step, .total_steps = 10});
    };
    EXPECT_DOUBLE_EQ(lr(0), 0.25);
    EXPECT_DOUBLE_EQ(lr(1), 0.5);
    EXPECT_DOUBLE_EQ(lr(3), 1);
    EXPECT_DOUBLE_EQ(lr(4), 1);
  }
}

TEST(Schedule, CosineStaysAtZeroPastItsEndAndNeverBelow) {
  OptimizerOptions options;
  options.schedule = ScheduleKind::kCosine;
  options.warmup_steps = 5;
  EXPECT_DOUBLE_EQ(learning_rate(options, {.step = 12, .total_steps = 10}), 0);
  EXPECT_GT(learning_rate(options, {.step = 4, .total_steps = 3}), 0);
}

}  // namespace
}  // namespace lockstep::tasks
