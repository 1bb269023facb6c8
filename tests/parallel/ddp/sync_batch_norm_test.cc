#include "lockstep/parallel/ddp/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;

class SyncNorm : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, SyncNorm,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

template <class Norm>
struct NormNetImpl : torch::nn::Module {
  explicit NormNetImpl(Norm norm_) : norm(norm_) {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)));
    register_module("norm", norm);
  }
  Tensor forward(Tensor x) { return norm(conv(x)).tanh().mean({2, 3}); }
  torch::nn::Conv2d conv{nullptr};
  Norm norm;
};

Tensor images(int64_t first, int64_t count) {
  return torch::arange(first * 50, (first + count) * 50, torch::kFloat)
      .mul(0.61)
      .sin()
      .view({count, 2, 5, 5})
      .to(home());
}

/// Two steps over 6 samples, `counts[r]` of them on rank r, and an evaluation.
void compare_with_one_process(const ProcessGroup& world,
                              const std::vector<int64_t>& counts,
                              const torch::nn::BatchNormOptions& options) {
  using Synced = NormNetImpl<SyncBatchNorm>;
  using Plain = NormNetImpl<torch::nn::BatchNorm2d>;
  auto net = filled(std::make_shared<Synced>(SyncBatchNorm(options, world)));
  auto plain = filled(std::make_shared<Plain>(torch::nn::BatchNorm2d(options)));
  DistributedDataParallel<Synced> model(net, world);
  torch::optim::SGD optimizer(net->parameters(), 0.3);
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.3);
  int64_t first = 0;
  for (int r = 0; r < world.rank(); ++r) {
    first += counts[static_cast<size_t>(r)];
  }
  const int64_t own = counts[static_cast<size_t>(world.rank())];
  for (int64_t step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    // Each rank's part of the mean over all samples. The parts are averaged.
    const Tensor loss = model(images(step * 6 + first, own)).pow(2).sum() / 6;
    (loss * world.size()).backward();
    optimizer.step();
    plain_optimizer.zero_grad();
    (plain->forward(images(step * 6, 6)).pow(2).sum() / 6).backward();
    plain_optimizer.step();
  }
  check_same(copies(net->parameters()), copies(plain->parameters()), 1e-5);
  check_same(copies(net->buffers()), copies(plain->buffers()), 1e-5);
  net->eval();
  plain->eval();
  const torch::NoGradGuard no_grad;
  check_same({net->forward(images(3, 2))}, {plain->forward(images(3, 2))},
             1e-5);
}

TEST_P(SyncNorm, IsBatchNormOverTheBatchesOfAllRanks) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    const torch::nn::BatchNormOptions plain(3);
    compare_with_one_process(world, {3, 3}, plain);
    compare_with_one_process(world, {5, 1}, plain);
    compare_with_one_process(world, {6, 0}, plain);
    compare_with_one_process(
        world, {2, 4},
        torch::nn::BatchNormOptions(3).momentum(std::nullopt).eps(1e-3));
    compare_with_one_process(world, {2, 4},
                             torch::nn::BatchNormOptions(3).affine(false));
    compare_with_one_process(
        world, {2, 4},
        torch::nn::BatchNormOptions(3).track_running_stats(false));
  });
  EXPECT_EQ(failure, "");
}

TEST(SyncNormOfOneRank, RefusesWhatDoesNotFit) {
  SyncBatchNorm norm(torch::nn::BatchNormOptions(3), ProcessGroup());
  EXPECT_THROW(norm(torch::zeros({2, 4, 5})), InvalidArgument);
  EXPECT_THROW(norm(torch::zeros({1, 3})), ParallelError);
  EXPECT_EQ(norm(torch::randn({4, 3})).sizes(), (std::vector<int64_t>{4, 3}));
}

}  // namespace
}  // namespace lockstep
