#include <mutex>

#include <gtest/gtest.h>

#include "lockstep/base/cpu_set.h"
#include "lockstep/comm/world.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {
namespace {

TrainOptions small_run(const std::string& model) {
  TrainOptions options;
  options.model = {.name = model, .width = 32, .depth = 2};
  options.data = {.name = "synthetic", .samples = 100};
  options.batch_size = 30;  // uneven over 4 shards; the epoch's last has 10
  options.epochs = model == "mlp" ? 2 : 1;
  options.max_steps = model == "mlp" ? 0 : 2;
  options.lr = 0.01;
  options.seed = 3;
  options.shards = 4;
  options.intra_op_threads = 1;
  options.progress = false;
  options.evaluate = true;
  options.devices = {Device{.kind = DeviceKind::kCpu, .index = 0, .slices = 1}};
  return options;
}

/// Rank 0's report of a run with ranks as threads.
RunReport distributed(TrainOptions options, int ranks,
                      const std::string& backend) {
  options.strategy = Strategy::kDistributed;
  options.devices.resize(static_cast<size_t>(ranks), options.devices[0]);
  RunReport first;
  std::mutex mutex;
  WorldOptions world_options;
  world_options.backend = backend;
  world_options.timeout = std::chrono::seconds(100);
  spawn(
      ranks,
      [&](World world) {
        TrainOptions own = options;
        own.world = world;
        const RunReport report = run_training(own);
        const std::lock_guard lock(mutex);
        if (world.rank() == 0) first = report;
      },
      world_options);
  return first;
}

class Ddp : public testing::TestWithParam<const char*> {};

TEST_P(Ddp, GivesTheBitsOfOneDevice) {
  for (const double clip : {0.0, 0.5}) {
    for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
      TrainOptions options = small_run("mlp");
      options.optimizer = kind;
      options.clip_grad_norm = clip;
      const RunReport single = run_training(options);
      for (const int ranks : {1, 2, 4}) {
        const RunReport ddp = distributed(options, ranks, GetParam());
        EXPECT_EQ(ddp.parameter_sha256, single.parameter_sha256)
            << ranks << " ranks, clip " << clip;
        EXPECT_EQ(ddp.losses, single.losses);
        EXPECT_EQ(ddp.test.samples, single.test.samples);
        EXPECT_EQ(ddp.test.accuracy, single.test.accuracy);
        EXPECT_EQ(ddp.epochs.back().train_accuracy,
                  single.epochs.back().train_accuracy);
      }
    }
  }
}

// Shards that are no power of two: a rank's shards make up several nodes of
// the tree.
TEST_P(Ddp, GivesTheBitsOfOneDeviceForSixShardsOfTwoRanks) {
  TrainOptions options = small_run("mlp");
  options.shards = 6;
  EXPECT_EQ(distributed(options, 2, GetParam()).parameter_sha256,
            run_training(options).parameter_sha256);
  EXPECT_EQ(distributed(options, 3, GetParam()).parameter_sha256,
            run_training(options).parameter_sha256);
}

TEST_P(Ddp, KeepsTheBatchNormStatisticsOfShard0) {
  const TrainOptions options = small_run("resnet18");
  const RunReport single = run_training(options);
  const RunReport ddp = distributed(options, 2, GetParam());
  EXPECT_EQ(ddp.parameter_sha256, single.parameter_sha256);
}

INSTANTIATE_TEST_SUITE_P(Backends, Ddp, testing::Values("shm", "gloo"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::train
