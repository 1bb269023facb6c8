#include <gtest/gtest.h>

#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

ImageTraining small_run(const std::string& model) {
  ImageTraining options = sharded_run();
  options.model.name = model;
  if (model == "mlp") return options;
  options.epochs(1);
  options.max_steps(2);
  return options;
}

class Ddp : public testing::TestWithParam<const char*> {};

TEST_P(Ddp, GivesTheBitsOfOneDevice) {
  for (const double clip : {0.0, 0.5}) {
    for (const auto kind :
         {tasks::OptimizerKind::kSgd, tasks::OptimizerKind::kAdamW}) {
      ImageTraining options = small_run("mlp");
      options.optimizer.optimizer = kind;
      options.clip_grad_norm(clip);
      const RunReport single = run_training(options);
      for (const int ranks : {1, 2, 4}) {
        const RunReport ddp = distributed(options, ranks, GetParam());
        EXPECT_EQ(ddp.parameter_sha256, single.parameter_sha256)
            << ranks << " ranks, clip " << clip;
        EXPECT_EQ(ddp.losses, single.losses);
        EXPECT_EQ(ddp.test.samples, single.test.samples);
        EXPECT_EQ(ddp.test.metrics.at("accuracy"),
                  single.test.metrics.at("accuracy"));
        EXPECT_EQ(ddp.epochs.back().train.at("accuracy"),
                  single.epochs.back().train.at("accuracy"));
      }
    }
  }
}

// Shards that are no power of two: a rank's shards make up several nodes of
// the tree.
TEST_P(Ddp, GivesTheBitsOfOneDeviceForSixShardsOfTwoRanks) {
  ImageTraining options = small_run("mlp");
  options.shards(6);
  EXPECT_EQ(distributed(options, 2, GetParam()).parameter_sha256,
            run_training(options).parameter_sha256);
  EXPECT_EQ(distributed(options, 3, GetParam()).parameter_sha256,
            run_training(options).parameter_sha256);
}

TEST_P(Ddp, KeepsTheBatchNormStatisticsOfShard0) {
  const ImageTraining options = small_run("resnet18");
  const RunReport single = run_training(options);
  const RunReport ddp = distributed(options, 2, GetParam());
  EXPECT_EQ(ddp.parameter_sha256, single.parameter_sha256);
}

INSTANTIATE_TEST_SUITE_P(Backends, Ddp, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::training
