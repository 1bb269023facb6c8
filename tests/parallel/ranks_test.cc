// Ranks of a training run, and their devices.
#include "tests/parallel/ddp/ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::ranks_test {
namespace {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(int64_t hidden_) : hidden(hidden_) { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(3, hidden));
    second = register_module("second", torch::nn::Linear(hidden, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    return second(torch::relu(first(x)));
  }
  int64_t hidden;
  torch::nn::Linear first{nullptr}, second{nullptr};
};

std::vector<Device> host() { return {Device{}}; }

DataParallelOptions of(const ProcessGroup& world) {
  return DataParallelOptions().process_group(world).intra_op_threads(1);
}

torch::Tensor loss_of(const torch::Tensor& output,
                      const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

class Ranks : public testing_ddp::OnBackends {};

TEST_P(Ranks, AreForDistributedDataParallel) {
  run_on_ranks(2, [](ProcessGroup world) {
    try {
      DataParallel(std::make_shared<NetImpl>(4), host(), of(world));
      TORCH_CHECK(false, "it was accepted");
    } catch (const InvalidArgument& error) {
      TORCH_CHECK(error.code() == ErrorCode::kBadOption);
      TORCH_CHECK(std::string(error.what()).find("DistributedDataParallel") !=
                  std::string::npos);
    }
  });
}

TEST_P(Ranks, WithAnotherModelAreRefusedByName) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = std::make_shared<NetImpl>(4 + world.rank());
    OverRanks(net, host(), of(world));
  });
  EXPECT_PRED2(contains, failure, "[parameters-differ]");
  EXPECT_PRED2(contains, failure, "'first.weight': Float [4, 3]");
  EXPECT_PRED2(contains, failure, "'first.weight': Float [5, 3]");
}

TEST_P(Ranks, StartFromTheParametersOfRank0) {
  run_on_ranks(3, [](ProcessGroup world) {
    auto net = std::make_shared<NetImpl>(4);
    {
      torch::NoGradGuard no_grad;
      for (auto& p : net->parameters()) p.fill_(world.rank() + 1);
    }
    auto model = OverRanks(net, host(), of(world));
    for (const auto& p : model->parameters()) {
      TORCH_CHECK(p.eq(1).all().item<bool>(), "not rank 0's");
    }
  });
}

TEST_P(Ranks, WithOtherPartsOfTheBatchAreRefused) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = std::make_shared<NetImpl>(4);
    auto model = OverRanks(net, host(), of(world));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const int64_t samples = 4 + world.rank();
    model->train_step(torch::randn({samples, 3}), torch::randn({samples, 1}),
                      loss_of, sgd);
  });
  EXPECT_PRED2(contains, failure, "[samples-differ]");
}

TEST_P(Ranks, EvaluateWithoutEachOther) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto model = OverRanks(std::make_shared<NetImpl>(4), host(), of(world));
    if (world.rank() == 1) return;
    torch::NoGradGuard no_grad;
    TORCH_CHECK(model->forward(torch::randn({2, 3})).size(0) == 2);
  });
}

/// Keeps the mean of the batch that it saw last, as BatchNorm keeps statistics.
struct MeanNetImpl : torch::nn::Cloneable<MeanNetImpl> {
  MeanNetImpl() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(3, 1));
    mean = register_buffer("mean", torch::zeros({}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    mean.copy_(x.detach().mean());
    return layer(x);
  }
  torch::nn::Linear layer{nullptr};
  torch::Tensor mean;
};

TEST_P(Ranks, HaveTheBuffersOfRank0AfterAStep) {
  const auto x = torch::arange(24.0).view({8, 3});
  const auto y = torch::ones({8, 1});
  run_on_ranks(2, [&](ProcessGroup world) {
    auto net = std::make_shared<MeanNetImpl>();
    auto model = OverRanks(net, host(), of(world));
    torch::optim::SGD sgd(net->parameters(), 0.01);
    for (const double factor : {1.0, 2.0}) {
      model->train_step(factor * x.narrow(0, world.rank() * 4, 4),
                        y.narrow(0, world.rank() * 4, 4), loss_of, sgd);
      model->load_buffers();
      TORCH_CHECK(net->mean.item<double>() == factor * 5.5, "mean ",
                  net->mean.item<double>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Ranks, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::ranks_test
