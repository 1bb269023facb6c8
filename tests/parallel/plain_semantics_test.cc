// Tests how train_step() treats hooks, existing gradients, and tensors outside
// of the module: in the same way as a loop of plain LibTorch, which is the
// oracle, in double precision.
#include <limits>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

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

TEST_P(PlainSemantics, CallHooksOnParametersWithTheGradientOfTheBatch) {
  int calls = 0;
  const auto twice = [&](const Tensor& gradient) {
    ++calls;
    return gradient * 2;
  };
  net->parameters()[0].register_hook(twice);
  plain->parameters()[0].register_hook(twice);
  const auto model = wrap();
  auto fused_sgd = optim::sgd(net->parameters(), kLr);
  auto plain_sgd = make_plain_sgd(plain->parameters());
  for (int step = 0; step < 2; ++step) {
    plain_sgd.zero_grad();
    mean_square(plain->forward(data.x), data.y).backward();
    plain_sgd.step();
    model->train_step(data.x, data.y, mean_square, *fused_sgd);
  }
  expect_same(*net, *plain);
  EXPECT_EQ(calls, 4);
  model->train_step(data.x, data.y, mean_square);
  EXPECT_EQ(calls, 5);
}

TEST_P(PlainSemantics, KeepWhatTheLossTakesFromTheParameters) {
  const auto with_penalty = [](const Mlp& of) {
    return [of](const Tensor& output, const Tensor& target) {
      Tensor loss = mean_square(output, target);
      for (const Tensor& p : of->parameters())
        loss = loss + 0.1 * p.pow(2).sum();
      return loss;
    };
  };
  const auto model = wrap();
  auto fused_sgd = optim::sgd(net->parameters(), kLr);
  auto plain_sgd = make_plain_sgd(plain->parameters());
  for (int step = 0; step < 3; ++step) {
    plain_sgd.zero_grad();
    with_penalty(plain)(plain->forward(data.x), data.y).backward();
    plain_sgd.step();
    model->train_step(data.x, data.y, with_penalty(net), *fused_sgd);
  }
  expect_same(*net, *plain);
}

TEST_P(PlainSemantics, GiveAnInputItsGradientAndTheGraphBehindIt) {
  const auto model = wrap();
  auto fused_sgd = optim::sgd(net->parameters(), kLr);
  auto plain_sgd = make_plain_sgd(plain->parameters());
  Tensor encoder = torch::randn({6, 6}, torch::kDouble).requires_grad_();
  Tensor plain_encoder = encoder.detach().clone().requires_grad_();
  Tensor target = data.y.clone().requires_grad_();
  Tensor plain_target = data.y.clone().requires_grad_();

  plain_sgd.zero_grad();
  mean_square(plain->forward(data.x.matmul(plain_encoder)), plain_target)
      .backward();
  plain_sgd.step();
  model->train_step(data.x.matmul(encoder), target, mean_square, *fused_sgd);
  expect_same(*net, *plain);
  EXPECT_TRUE(torch::allclose(encoder.grad(), plain_encoder.grad()));
  EXPECT_TRUE(torch::allclose(target.grad(), plain_target.grad()));
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

TEST_P(PlainSemantics, AddToTheGradientsThatAreThere) {
  const auto model = wrap();
  auto fused_sgd = optim::sgd(net->parameters(), kLr);
  auto plain_sgd = make_plain_sgd(plain->parameters());
  const Data second;
  for (int cycle = 0; cycle < 2; ++cycle) {
    plain_sgd.zero_grad();
    mean_square(plain->forward(data.x), data.y).backward();
    mean_square(plain->forward(second.x), second.y).backward();
    plain_sgd.step();
    model->train_step(data.x, data.y, mean_square);
    model->train_step(second.x, second.y, mean_square, *fused_sgd);
  }
  expect_same(*net, *plain);
  EXPECT_FALSE(net->parameters()[0].grad().defined());
}

TEST_P(PlainSemantics, LeaveNoGradientsAlsoWhereTheOptimizerHasNoParameter) {
  const auto model = wrap();
  const auto all = net->parameters();
  auto fused_sgd = optim::sgd({all[0], all[1]}, kLr);
  model->train_step(data.x, data.y, mean_square, *fused_sgd);
  for (const Tensor& parameter : all) EXPECT_FALSE(parameter.grad().defined());
}

TEST_P(PlainSemantics, LeaveNoNanBehindAStepThatWasSkipped) {
  const auto model = wrap();
  auto fused_sgd = optim::sgd(net->parameters(), kLr);
  Tensor bad = data.x.clone();
  bad[9][0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(
      model->train_step(bad, data.y, mean_square, *fused_sgd).is_finite);
  EXPECT_FALSE(model
                   ->train_step(bad, data.y, mean_square, *fused_sgd,
                                TrainStepOptions().clip_grad_norm(1))
                   .is_finite);

  auto plain_sgd = make_plain_sgd(plain->parameters());
  mean_square(plain->forward(data.x), data.y).backward();
  plain_sgd.step();
  auto own_loop = make_plain_sgd(net->parameters());
  mean_square(model->forward(data.x), data.y).backward();
  own_loop.step();
  expect_same(*net, *plain);
}

TEST_P(PlainSemantics, RefuseAHookThatWouldSeeAPart) {
  const auto model = wrap();
  net->parameters()[0].register_hook([](const Tensor& g) { return g; });
  try {
    model->train_step(
        data.x, data.y, [&](const Tensor& output, const Tensor& target) {
          return mean_square(output, target) + net->parameters()[0].sum();
        });
    FAIL() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("has a hook"), std::string::npos)
        << error.what();
  }
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

TEST(ASubmoduleRegisteredTwice, IsUpdatedOnce) {
  for (const int devices : {1, 2}) {
    torch::manual_seed(7);
    Twice net;
    net->to(torch::kDouble);
    const Tensor weight = net->layer->weight.detach().clone().requires_grad_();
    const Tensor bias = net->layer->bias.detach().clone().requires_grad_();
    const Tensor x = torch::randn({6, 200}, torch::kDouble);
    auto plain_sgd =
        torch::optim::SGD(std::vector<Tensor>{weight, bias},
                          torch::optim::SGDOptions(kLr).momentum(0.9));
    const DataParallel model(net, slices(devices));
    auto fused_sgd = optim::sgd(optim::unique(net->parameters()),
                                optim::SGDOptions(kLr).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      plain_sgd.zero_grad();
      namespace F = torch::nn::functional;
      mean_square(
          F::linear(torch::tanh(F::linear(x, weight, bias)), weight, bias), x)
          .backward();
      plain_sgd.step();
      model->train_step(x, x, mean_square, *fused_sgd);
    }
    EXPECT_TRUE(torch::allclose(net->layer->weight, weight, 1e-10, 1e-12));
    EXPECT_TRUE(torch::allclose(net->layer->bias, bias, 1e-10, 1e-12));
  }
}

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

TEST(ASubmoduleRegisteredTwice, IsRefusedByOurOptimizersUnlessListedOnce) {
  const Twice net;
  try {
    optim::sgd(net->parameters(), kLr);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadOptimizer);
    EXPECT_NE(std::string(error.what()).find("listed twice"),
              std::string::npos);
  }
  EXPECT_EQ(optim::unique(net->parameters()).size(), 2U);
}

class AnUnevenSplit : public testing::TestWithParam<const char*> {};

TEST_P(AnUnevenSplit, TakesTheTotalWithoutAnOptimizer) {
  torch::manual_seed(5);
  Mlp whole;
  whole->to(torch::kDouble);
  const Tensor x = torch::randn({3, 6}, torch::kDouble);
  const Tensor y = torch::randn({3, 4}, torch::kDouble);
  mean_square(whole->forward(x), y).backward();
  const std::string failure =
      testing_ddp::failure_of(2, GetParam(), [&](ProcessGroup world) {
        Mlp net = copy_of(whole);
        const DataParallel model(
            net, std::vector{Device{}},
            DataParallelOptions().process_group(world).intra_op_threads(1));
        const int64_t first = world.rank() == 0 ? 0 : 2;
        const int64_t count = world.rank() == 0 ? 2 : 1;
        model->train_step(x.narrow(0, first, count), y.narrow(0, first, count),
                          mean_square, TrainStepOptions().total_samples(3));
        for (size_t p = 0; p < 4; ++p) {
          TORCH_CHECK(torch::allclose(net->parameters()[p].grad(),
                                      whole->parameters()[p].grad()),
                      "another gradient");
        }
      });
  EXPECT_EQ(failure, "");
}

TEST_P(AnUnevenSplit, RefusesGradientsThatDifferBetweenRanks) {
  const std::string failure =
      testing_ddp::failure_of(2, GetParam(), [&](ProcessGroup world) {
        torch::manual_seed(5);
        Mlp net;
        const DataParallel model(
            net, std::vector{Device{}},
            DataParallelOptions().process_group(world).intra_op_threads(1));
        auto sgd =
            optim::sgd(net->parameters(),
                       optim::SGDOptions().make_state([&](const Tensor& p) {
                         return model->make_state(p);
                       }));
        net->parameters()[1].mutable_grad() =
            torch::full({16}, static_cast<double>(world.rank()), torch::kFloat);
        model->train_step(torch::randn({2, 6}), torch::randn({2, 4}),
                          mean_square, *sgd);
      });
  EXPECT_NE(failure.find("rank 1 has another gradient than rank 0"),
            std::string::npos)
      << failure;
  EXPECT_NE(failure.find("'net.0.bias'"), std::string::npos) << failure;
}

INSTANTIATE_TEST_SUITE_P(Backends, AnUnevenSplit,
                         testing::Values("shm", "tcp"));

}  // namespace
}  // namespace lockstep
