#include "lockstep/train/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"
#include "tests/train/test_files.h"

namespace lockstep::train {
namespace {

int64_t cores() { return static_cast<int64_t>(allowed_cores().size()); }

TrainOptions options_on(const std::string& list, Strategy strategy) {
  TrainOptions options;
  options.devices = devices(list);
  options.strategy = strategy;
  return options;
}

TEST(Plan, SingleUsesTheFirstDeviceAlone) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  const Plan plan = make_plan(options_on("cpu:2", Strategy::kSingle));
  ASSERT_EQ(plan.devices.size(), 1u);
  EXPECT_EQ(plan.devices[0].name(), "cpu:0");
  EXPECT_EQ(plan.shards, 1);
}

TEST(Plan, HasAShardPerDeviceByDefault) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  EXPECT_EQ(make_plan(options_on("cpu:2", Strategy::kDataParallel)).shards, 2);
}

TEST(Plan, GivesAShardTheSameThreadsInSingleAndDp) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  for (const int64_t shards : {2, 4, 8}) {
    auto single = options_on("cpu", Strategy::kSingle);
    auto parallel = options_on("cpu:2", Strategy::kDataParallel);
    single.shards = parallel.shards = shards;
    const int threads = make_plan(single).intra_op_threads;
    EXPECT_EQ(threads, make_plan(parallel).intra_op_threads);
    EXPECT_EQ(threads, std::max<int64_t>(cores() / shards, 1));
  }
}

TEST(Plan, GivesOneShardAllCores) {
  EXPECT_EQ(make_plan(options_on("cpu", Strategy::kSingle)).intra_op_threads,
            cores());
}

TEST(Plan, RefusesFewerShardsThanDevices) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  auto options = options_on("cpu:2", Strategy::kDataParallel);
  options.shards = 1;
  const auto message = message_of<InvalidArgument>([&] { make_plan(options); });
  expect_problem(message, ErrorCode::kBadOption, {"1", "2", "cpu:0, cpu:1"});
  options.shards = 3;
  EXPECT_EQ(make_plan(options).shards, 3);
}

TEST(Plan, RefusesNumbersThatCanNotBe) {
  const auto refuses = [](auto change, const std::string& name,
                          ErrorCode code = ErrorCode::kBadOption) {
    auto options = options_on("cpu", Strategy::kSingle);
    change(options);
    expect_problem(message_of<InvalidArgument>([&] { make_plan(options); }),
                   code, {name});
  };
  refuses([](auto& o) { o.batch_size = 0; }, "batch_size");
  refuses([](auto& o) { o.epochs = 0; }, "epochs");
  refuses([](auto& o) { o.max_steps = -1; }, "max_steps");
  refuses([](auto& o) { o.keep_checkpoints = 0; }, "keep_checkpoints");
  refuses([](auto& o) { o.lr = -1; }, "lr");
  refuses([](auto& o) { o.lr = std::numeric_limits<double>::infinity(); },
          "lr");
  refuses([](auto& o) { o.clip_grad_norm = std::nan(""); }, "clip_grad_norm");
  refuses([](auto& o) { o.devices.clear(); }, "device",
          ErrorCode::kNoSuchDevice);
}

TEST(Strategies, HaveNamesThatParse) {
  for (const auto strategy : {Strategy::kSingle, Strategy::kDataParallel,
                              Strategy::kDataParallelClassic}) {
    EXPECT_EQ(parse_strategy(to_string(strategy)), strategy);
  }
}

TEST(Strategies, SuggestTheNearest) {
  expect_problem(message_of<InvalidArgument>([] { parse_strategy("singel"); }),
                 ErrorCode::kUnknownName, {"'singel'", "'single'"});
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
  TrainOptions options;
  options.schedule = ScheduleKind::kCosine;
  options.warmup_steps = 5;
  EXPECT_DOUBLE_EQ(learning_rate(options, {.step = 12, .total_steps = 10}), 0);
  EXPECT_GT(learning_rate(options, {.step = 4, .total_steps = 3}), 0);
}

}  // namespace
}  // namespace lockstep::train
