// Parameters that get other memory or other values after the module is wrapped.
#include <sstream>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;
using Model = DistributedDataParallel<NetImpl>;

/// Returns the output of torch::save() for a net whose parameters are `factor`
/// times those of filled().
std::string saved_net(double factor) {
  auto net = filled(std::make_shared<NetImpl>());
  {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net->parameters()) parameter *= factor;
  }
  std::ostringstream stream;
  torch::save(std::static_pointer_cast<torch::nn::Module>(net), stream);
  return stream.str();
}

void load(const std::shared_ptr<NetImpl>& net, const std::string& text) {
  std::istringstream stream(text);
  auto module = std::static_pointer_cast<torch::nn::Module>(net);
  torch::load(module, stream);
}

void step(Model& model, torch::optim::Optimizer& optimizer, int64_t first,
          int64_t count) {
  optimizer.zero_grad();
  loss_of(model->forward(inputs(first, count)), targets(first, count))
      .backward();
  optimizer.step();
}

class DdpLoading : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, DdpLoading, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(DdpLoading, TorchLoadIntoTheWrappedModuleIsFollowed) {
  const std::string doubled = saved_net(2), tripled = saved_net(3);
  // Plain LibTorch, of the whole batches.
  auto plain = filled(std::make_shared<NetImpl>());
  torch::optim::SGD plain_sgd(plain->parameters(), 0.1);
  const auto plain_step = [&](int64_t first) {
    plain_sgd.zero_grad();
    loss_of(plain->forward(inputs(first, 2)), targets(first, 2)).backward();
    plain_sgd.step();
  };
  plain_step(0);
  load(plain, doubled);
  plain_step(2);
  plain_step(4);
  load(plain, doubled);
  load(plain, tripled);
  plain_step(6);
  for (const Options& options :
       {Options(), Options().find_unused_parameters(true),
        Options().static_graph(true),
        Options().average(GradientAverage::kSamples)}) {
    run_on_ranks(2, [&](ProcessGroup world) {
      auto net = filled(std::make_shared<NetImpl>());
      Model model(net, world, options);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const int64_t r = world.rank();
      step(model, sgd, r, 1);
      load(net, doubled);
      step(model, sgd, 2 + r, 1);
      step(model, sgd, 4 + r, 1);
      load(net, doubled);
      load(net, tripled);
      step(model, sgd, 6 + r, 1);
      check_same(copies(net->parameters()), copies(plain->parameters()), 1e-5);
    });
  }
}

TEST_P(DdpLoading, OnOneRankAloneIsAnErrorInTheSameStep) {
  const std::string doubled = saved_net(2);
  for (const bool in_place : {false, true}) {
    const std::string failure = on_ranks(2, [&](ProcessGroup world) {
      auto net = filled(std::make_shared<NetImpl>());
      Model model(net, world);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      step(model, sgd, world.rank(), 1);
      if (world.rank() == 1 && in_place) {
        const torch::NoGradGuard no_grad;
        net->second->weight *= 2;
      } else if (world.rank() == 1) {
        load(net, doubled);
      }
      const auto before = copies(net->parameters());
      try {
        step(model, sgd, world.rank(), 1);
      } catch (const std::exception& error) {
        check_same(copies(net->parameters()), before);
        TORCH_CHECK(contains(error.what(), "'second.weight'"), error.what());
        throw;
      }
    });
    EXPECT_PRED2(contains, failure, "[parameters-differ]");
    EXPECT_PRED2(contains, failure, "rank 1");
    EXPECT_EQ(contains(failure, "'first.weight'"), !in_place) << failure;
  }
}

TEST_P(DdpLoading, OfTheSameValuesOnOneRankChangesNothing) {
  run_on_ranks(2, [&](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    Model model(net, world);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    step(model, sgd, world.rank(), 1);
    if (world.rank() == 0) {
      for (Tensor& p : net->parameters()) {
        p.set_data(p.detach().clone());
      }
    }
    for (int i = 0; i < 2; ++i) {
      step(model, sgd, world.rank(), 1);
    }
  });
}

TEST_P(DdpLoading, OfAnotherTypeOrShapeIsAnErrorByName) {
  const auto failure_with = [&](const std::function<Tensor(Tensor)>& change) {
    return on_ranks(2, [&](ProcessGroup world) {
      auto net = filled(std::make_shared<NetImpl>());
      Model model(net, world);
      net->second->bias.set_data(change(net->second->bias.detach()));
      const Tensor x = inputs(0, 1).requires_grad_();
      // A loss of derivatives reaches no output.
      torch::autograd::grad({model(x).sum()}, {x}, {}, true, true)[0]
          .pow(2)
          .sum()
          .backward();
    });
  };
  for (const std::string& failure : {failure_with([](const Tensor& bias) {
                                       return bias.view({1, 3});
                                     }),
                                     failure_with([](const Tensor& bias) {
                                       return bias.to(torch::kDouble);
                                     })}) {
    EXPECT_PRED2(contains, failure, "'second.bias'");
    EXPECT_PRED2(contains, failure, "[module-changed]");
  }
}

TEST_P(DdpLoading, BetweenForwardAndBackwardIsAnError) {
  const std::string doubled = saved_net(2);
  const std::string failure = on_ranks(2, [&](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    Model model(net, world, Options().find_unused_parameters(true));
    const Tensor loss = model(inputs(0, 1)).sum();
    load(net, doubled);
    model(inputs(0, 1));
    loss.backward();
  });
  EXPECT_PRED2(contains, failure, "'first.weight'");
  EXPECT_PRED2(contains, failure, "[module-changed]");
}

}  // namespace
}  // namespace lockstep
