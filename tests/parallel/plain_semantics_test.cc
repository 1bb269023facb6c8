// Tests how train_step() treats tensors outside of the module, and modules that
// are registered twice: in the same way as a loop of plain LibTorch, which is
// the oracle, in double precision. Hooks and existing gradients are in the
// programs of tests/differential.
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep {
namespace {

using testing_nets::Mlp;
using testing_nets::slices;
using torch::Tensor;

constexpr double kLr = 0.3;

Tensor mean_square(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, target);
}

struct Data {
  Tensor x = torch::randn({10, 6}, torch::kDouble);
  Tensor y = torch::randn({10, 4}, torch::kDouble);
};

torch::optim::SGD make_plain_sgd(std::vector<Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters),
                           torch::optim::SGDOptions(kLr));
}

Mlp copy_of(const Mlp& net) {
  return Mlp(std::dynamic_pointer_cast<testing_nets::MlpImpl>(net->clone()));
}

void expect_same(const torch::nn::Module& found,
                 const torch::nn::Module& expected) {
  const auto parameters = expected.named_parameters();
  for (const auto& item : found.named_parameters()) {
    EXPECT_TRUE(
        torch::allclose(item.value(), parameters[item.key()], 1e-10, 1e-12))
        << item.key();
  }
}

/// A net, its plain twin, and DataParallel over it with so many shards on so
/// many slices.
class PlainSemantics : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  PlainSemantics() {
    torch::manual_seed(5);
    net->to(torch::kDouble);
    plain = copy_of(net);
  }
  DataParallel<testing_nets::MlpImpl> wrap() {
    return {
        net, slices(GetParam().first),
        DataParallelOptions().shards(GetParam().second).intra_op_threads(1)};
  }

  Mlp net, plain{nullptr};
  Data data;
};

TEST_P(PlainSemantics, GiveAnInputItsGradientAndTheGraphBehindIt) {
  const auto model = wrap();
  torch::optim::SGD fused_sgd(net->parameters(), kLr);
  auto plain_sgd = make_plain_sgd(plain->parameters());
  Tensor encoder = torch::randn({6, 6}, torch::kDouble).requires_grad_();
  Tensor plain_encoder = encoder.detach().clone().requires_grad_();
  Tensor target = data.y.clone().requires_grad_();
  Tensor plain_target = data.y.clone().requires_grad_();

  plain_sgd.zero_grad();
  mean_square(plain->forward(data.x.matmul(plain_encoder)), plain_target)
      .backward();
  plain_sgd.step();
  model->train_step(data.x.matmul(encoder), target, mean_square, fused_sgd);
  expect_same(*net, *plain);
  EXPECT_TRUE(torch::allclose(encoder.grad(), plain_encoder.grad()));
  EXPECT_TRUE(torch::allclose(target.grad(), plain_target.grad()));
}

// The optimizer of train_step() is for the model only.
TEST_P(PlainSemantics, TrainTheLossWithASecondOptimizer) {
  const auto model = wrap();
  const Tensor one = torch::ones({1}, torch::kDouble);
  Tensor scale = one.clone().requires_grad_();
  Tensor plain_scale = one.clone().requires_grad_();
  auto all = net->parameters();
  all.push_back(scale);
  auto both = make_plain_sgd(all);
  auto sgd = make_plain_sgd(net->parameters());
  auto loss_sgd = make_plain_sgd({scale});
  auto plain_sgd = make_plain_sgd(plain->parameters());
  auto plain_loss_sgd = make_plain_sgd({plain_scale});
  const auto loss = [&](const Tensor& output, const Tensor& target) {
    return mean_square(output * scale, target);
  };
  try {
    model->train_step(data.x, data.y, loss, both);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadOptimizer);
    EXPECT_NE(std::string(error.what()).find("second optimizer"),
              std::string::npos);
  }
  for (int step = 0; step < 3; ++step) {
    plain_sgd.zero_grad();
    plain_loss_sgd.zero_grad();
    mean_square(plain->forward(data.x) * plain_scale, data.y).backward();
    plain_sgd.step();
    plain_loss_sgd.step();
    model->train_step(data.x, data.y, loss, sgd);
    loss_sgd.step();
    loss_sgd.zero_grad();
  }
  expect_same(*net, *plain);
  EXPECT_TRUE(torch::allclose(scale, plain_scale));
}

TEST_P(PlainSemantics, GiveALeafOfTheLossItsGradient) {
  const auto model = wrap();
  Tensor scale = torch::ones({1}, torch::kDouble).requires_grad_();
  Tensor plain_scale = torch::ones({1}, torch::kDouble).requires_grad_();
  mean_square(plain->forward(data.x) * plain_scale, data.y).backward();
  model->train_step(data.x, data.y,
                    [&](const Tensor& output, const Tensor& target) {
                      return mean_square(output * scale, target);
                    });
  EXPECT_TRUE(torch::allclose(scale.grad(), plain_scale.grad()));
}

INSTANTIATE_TEST_SUITE_P(Devices, PlainSemantics,
                         testing::Values(std::pair{1, 1}, std::pair{1, 4},
                                         std::pair{2, 2}, std::pair{2, 5}));

/// One layer under two names, large enough for several blocks.
struct TwiceImpl : torch::nn::Cloneable<TwiceImpl> {
  TwiceImpl() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(200, 200));
    register_module("again", layer);
  }
  Tensor forward(const Tensor& x) { return layer(torch::tanh(layer(x))); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Twice);

// torch::optim updates each parameter as often as it is listed.
TEST(ASubmoduleRegisteredTwice, IsUpdatedByTorchAsInAPlainLoop) {
  for (const int devices : {1, 2}) {
    torch::manual_seed(7);
    Twice net;
    net->to(torch::kDouble);
    const auto plain = std::dynamic_pointer_cast<TwiceImpl>(net->clone());
    const Tensor x = torch::randn({6, 200}, torch::kDouble);
    const auto options = torch::optim::SGDOptions(kLr).momentum(0.9);
    torch::optim::SGD plain_sgd(plain->parameters(), options);
    torch::optim::SGD sgd(net->parameters(), options);
    const DataParallel model(net, slices(devices));
    for (int step = 0; step < 5; ++step) {
      plain_sgd.zero_grad();
      mean_square(plain->forward(x), x).backward();
      plain_sgd.step();
      model->train_step(x, x, mean_square, sgd);
    }
    EXPECT_TRUE(torch::allclose(net->layer->weight, plain->layer->weight, 1e-10,
                                1e-12));
  }
}

TEST(ASubmoduleRegisteredTwice, IsWarnedOfUnlessItIsListedOnce) {
  const Twice net;
  const DataParallel model(net, slices(2));
  const Tensor x = torch::ones({6, 200});
  const auto warnings_of = [&](std::vector<Tensor> parameters) {
    const LogCapture log;
    torch::optim::SGD sgd(std::move(parameters), kLr);
    model->train_step(x, x, mean_square, sgd);
    return log.text();
  };
  const std::string twice = warnings_of(net->parameters());
  EXPECT_NE(twice.find("of 4 parameters, 2 are listed twice"),
            std::string::npos)
      << twice;
  EXPECT_EQ(warnings_of(optim::unique(net->parameters())), "");
  EXPECT_EQ(optim::unique(net->parameters()).size(), 2U);
}

class ExistingGradients : public testing::TestWithParam<const char*> {};

TEST_P(ExistingGradients, ThatDifferBetweenRanksAreRefused) {
  const std::string failure =
      testing_ddp::failure_of(2, GetParam(), [&](ProcessGroup world) {
        torch::manual_seed(5);
        Mlp net;
        const OverRanks model(
            net, std::vector{Device{}},
            DataParallelOptions().process_group(world).intra_op_threads(1));
        torch::optim::SGD sgd(net->parameters(), 0.1);
        net->parameters()[1].mutable_grad() =
            torch::full({16}, static_cast<double>(world.rank()), torch::kFloat);
        model->train_step(torch::randn({2, 6}), torch::randn({2, 4}),
                          mean_square, sgd);
      });
  EXPECT_NE(failure.find("rank 1 has another gradient than rank 0"),
            std::string::npos)
      << failure;
  EXPECT_NE(failure.find("'net.0.bias'"), std::string::npos) << failure;
}

INSTANTIATE_TEST_SUITE_P(Backends, ExistingGradients,
                         testing::Values("shm", "tcp"));

}  // namespace
}  // namespace lockstep
