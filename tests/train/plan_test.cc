#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/train/training_plan.h"
#include "tests/base/expect_problem.h"
#include "tests/comm/scoped_environment.h"

namespace lockstep::training {
namespace {

int64_t cores() { return static_cast<int64_t>(allowed_cores().size()); }

TrainOptions options_on(const std::string& list, Strategy strategy) {
  TrainOptions options;
  options.devices(devices(list));
  options.strategy(strategy);
  return options;
}

TEST(Plan, SingleRefusesSeveralDevices) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  const auto options = options_on("2xcpu", Strategy::kSingle);
  expect_problem(error_of<InvalidArgument>([&] { make_plan(options); }),
                 ErrorCode::kBadOption, {"single", "cpu:0, cpu:1", "dp"});
}

TEST(Plan, HasAShardPerDeviceByDefault) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  EXPECT_EQ(make_plan(options_on("2xcpu", Strategy::kDataParallel)).shards, 2);
}

TEST(Plan, GivesAShardTheSameThreadsInSingleAndDp) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  for (const int64_t shards : {2, 4, 8}) {
    auto single = options_on("cpu", Strategy::kSingle);
    auto parallel = options_on("2xcpu", Strategy::kDataParallel);
    single.shards(shards);
    parallel.shards(shards);
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
  auto options = options_on("2xcpu", Strategy::kDataParallel);
  options.shards(1);
  const auto message = error_of<InvalidArgument>([&] { make_plan(options); });
  expect_problem(message, ErrorCode::kBadOption, {"1", "2", "cpu:0, cpu:1"});
  options.shards(3);
  EXPECT_EQ(make_plan(options).shards, 3);
}

TEST(Plan, RefusesNumbersThatCanNotBe) {
  const auto refuses = [](auto change, const std::string& name,
                          ErrorCode code = ErrorCode::kBadOption) {
    auto options = options_on("cpu", Strategy::kSingle);
    change(options);
    expect_problem(error_of<InvalidArgument>([&] { make_plan(options); }), code,
                   {name});
  };
  refuses([](auto& o) { o.batch_size(0); }, "batch_size");
  refuses([](auto& o) { o.epochs(0); }, "epochs");
  refuses([](auto& o) { o.max_steps(-1); }, "max_steps");
  refuses([](auto& o) { o.checkpoint().keep(1); }, "checkpoint().keep");
  refuses([](auto& o) { o.clip_grad_norm(std::nan("")); }, "clip_grad_norm");
  refuses([](auto& o) { o.verify().gradients_every(-1); },
          "verify().gradients_every");
  refuses(
      [](auto& o) {
        o.strategy(Strategy::kDataParallelClassic);
        o.verify().gradients_every(1);
      },
      "dp-classic");
  refuses([](auto& o) { o.devices().clear(); }, "device",
          ErrorCode::kNoSuchDevice);
}

TEST(Plan, HasAShardForEachMicroBatchOfEachDevice) {
  if (cores() < 2) GTEST_SKIP() << "needs 2 cores";
  auto options = options_on("2xcpu", Strategy::kDataParallel);
  options.accumulate(3);
  options.batch_size(36);
  EXPECT_EQ(make_plan(options).shards, 6);
  options.shards(6);
  EXPECT_EQ(make_plan(options).shards, 6);
  options.shards(4);
  expect_problem(error_of<InvalidArgument>([&] { make_plan(options); }),
                 ErrorCode::kBadOption, {"--shards 6", "--shards 4"});
  options.shards(0);
  options.batch_size(32);
  expect_problem(error_of<InvalidArgument>([&] { make_plan(options); }),
                 ErrorCode::kBadOption, {"30 or 36", "32"});
}

TEST(Strategies, HaveNamesThatParse) {
  for (const auto strategy : {Strategy::kSingle, Strategy::kDataParallel,
                              Strategy::kDataParallelClassic}) {
    EXPECT_EQ(parse_strategy(to_string(strategy)), strategy);
  }
}

TEST(Strategies, SuggestTheNearest) {
  expect_problem(error_of<InvalidArgument>([] { parse_strategy("singel"); }),
                 ErrorCode::kUnknownName, {"'singel'", "'single'"});
}

TEST(LaunchedRanks, RefuseToTrainTheSameRunInEachRank) {
  const ScopedEnvironment ranks({{"RANK", "1"},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCAL_RANK", "1"},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", "29500"}});
  const auto problem_of = [](Strategy strategy, int64_t group_size) {
    const auto options = TrainOptions().strategy(strategy);
    return error_of<InvalidArgument>(
        [&] { check_launched_ranks(options, group_size); });
  };
  for (const auto strategy : {Strategy::kSingle, Strategy::kDataParallel,
                              Strategy::kDataParallelClassic}) {
    expect_problem(problem_of(strategy, 2), ErrorCode::kBadOption,
                   {"2 ranks", to_string(strategy), "ddp"});
  }
  expect_problem(problem_of(Strategy::kDistributed, 1), ErrorCode::kBadOption,
                 {"2 ranks", "lockstep::init()"});
  check_launched_ranks(TrainOptions().strategy(Strategy::kDistributed), 2);
}

TEST(LaunchedRanks, AllowAnyStrategyWithoutALauncher) {
  const ScopedEnvironment none({});
  check_launched_ranks(TrainOptions().strategy(Strategy::kDataParallel), 1);
  check_launched_ranks(TrainOptions().strategy(Strategy::kDistributed), 1);
}

}  // namespace
}  // namespace lockstep::training
