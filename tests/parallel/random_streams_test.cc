// Random numbers belong to (seed, step, shard), wherever in a shard's work they
// are drawn and on however many devices.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::Net;
using testing_nets::slices;
using torch::Tensor;

constexpr int64_t kShards = 4;

/// Adds noise to the gradient.
struct NoisyGradient : torch::autograd::Function<NoisyGradient> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    return {gradients[0] + 0.1 * torch::randn_like(gradients[0])};
  }
};

struct NoisyNetImpl : torch::nn::Cloneable<NoisyNetImpl> {
  NoisyNetImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(6, 4)); }
  Tensor forward(const Tensor& x) { return NoisyGradient::apply(fc(x)); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(NoisyNet);

Tensor noisy_loss(const Tensor& output, const Tensor& target) {
  return cross_entropy(output + 0.1 * torch::randn_like(output), target);
}

Tensor batch() {
  return torch::arange(96, torch::kFloat).mul(0.37).sin().view({16, 6});
}
Tensor labels() { return torch::arange(16) % 4; }

/// The parameters' bytes after three steps on each of so many devices.
template <class M, class Step>
void expect_same_bits(const M& initial, const Step& step) {
  std::string expected;
  for (const int k : {1, 2, 4}) {
    const M net =
        std::dynamic_pointer_cast<typename M::ContainedType>(initial->clone());
    const DataParallel model(net, slices(k),
                             DataParallelOptions().shards(kShards).seed(5));
    for (int i = 0; i < 3; ++i) step(*net, model);
    if (k == 1) expected = bytes_of(*net);
    EXPECT_TRUE(bytes_of(*net) == expected) << k << " devices";
  }
}

TEST(RandomStreams, GiveALossTheSameNumbersOnAnyNumberOfDevices) {
  expect_same_bits(Mlp(), [](auto& net, const auto& model) {
    torch::optim::SGD sgd(net.parameters(), 0.1);
    model->train_step(batch(), labels(), noisy_loss, sgd);
  });
}

TEST(RandomStreams, GiveACustomBackwardTheSameNumbersInATrainStep) {
  expect_same_bits(NoisyNet(), [](auto& net, const auto& model) {
    torch::optim::SGD sgd(net.parameters(), 0.1);
    model->train_step(batch(), labels(), cross_entropy, sgd);
  });
}

TEST(RandomStreams, GiveACustomBackwardTheSameNumbersAfterAForward) {
  expect_same_bits(NoisyNet(), [](auto& net, const auto& model) {
    torch::optim::SGD sgd(net.parameters(), 0.1);
    sgd.zero_grad();
    cross_entropy(model->forward(batch()), labels()).backward();
    sgd.step();
  });
}

TEST(RandomStreams, LeaveTheDefaultOneAlone) {
  torch::manual_seed(4);
  const Tensor expected = torch::rand({3});
  NoisyNet net;
  const DataParallel model(net, slices(2));
  torch::manual_seed(4);
  model->train_step(batch(), labels(), noisy_loss);
  cross_entropy(model->forward(batch()), labels()).backward();
  EXPECT_TRUE(torch::rand({3}).equal(expected));
}

TEST(RandomStreams, FollowTheSeedThatTheProgramSets) {
  const Net net;
  const Tensor x = torch::arange(600, torch::kFloat).sin().view({8, 3, 5, 5});
  const auto draw = [&](int64_t before, int64_t after) {
    torch::manual_seed(before);
    const DataParallel model(net, slices(2));
    torch::manual_seed(after);
    return model->forward(x).detach();
  };
  EXPECT_TRUE(draw(5, 1).equal(draw(6, 1)));
  EXPECT_FALSE(draw(5, 1).equal(draw(5, 2)));
}

/// Passes on what it draws in the forward and in the backward.
struct Draws : torch::autograd::Function<Draws> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return x + torch::rand_like(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    return {torch::rand_like(gradients[0])};
  }
};
struct DrawingImpl : torch::nn::Cloneable<DrawingImpl> {
  DrawingImpl() { reset(); }
  void reset() override {
    zeros = register_parameter("zeros", torch::zeros({5}));
  }
  Tensor forward(const Tensor& x) { return Draws::apply(x + zeros); }
  Tensor zeros;
};
TORCH_MODULE(Drawing);

TEST(RandomStreams, AreOthersForForwardAndEachBackward) {
  Drawing net;
  const DataParallel model(net, slices(1));
  const Tensor output = model->forward(torch::zeros({1, 5}));
  std::vector<Tensor> drawn{output.detach().flatten()};
  for (int i = 0; i < 2; ++i) {
    net->zero_grad();
    output.sum().backward({}, /*retain_graph=*/true);
    drawn.push_back(net->zeros.grad().clone());
  }
  drawn.push_back(model->forward(torch::zeros({1, 5})).detach().flatten());
  for (size_t a = 0; a < drawn.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      EXPECT_FALSE(drawn[a].equal(drawn[b])) << a << " and " << b;
    }
  }
}

TEST(RandomStreams, AreOthersForEachShard) {
  Drawing net;
  const DataParallel model(net, slices(2),
                           DataParallelOptions().shards(kShards));
  const Tensor drawn = model->forward(torch::zeros({kShards, 5})).detach();
  for (int64_t a = 0; a < kShards; ++a) {
    for (int64_t b = 0; b < a; ++b) {
      EXPECT_FALSE(drawn[a].equal(drawn[b])) << "shards " << a << " and " << b;
    }
  }
}

class EvaluationsBetweenSteps
    : public testing::TestWithParam<std::pair<
          const char*,
          std::function<void(DataParallel<testing_nets::NetImpl>&)>>> {};

void evaluate(DataParallel<testing_nets::NetImpl>& model) {
  model->forward(torch::ones({8, 3, 5, 5}));
}

INSTANTIATE_TEST_SUITE_P(
    RandomStreams, EvaluationsBetweenSteps,
    testing::Values(std::pair{"InEvalMode",
                              [](auto& model) {
                                model->eval();
                                evaluate(model);
                                model->train();
                              }},
                    std::pair{"UnderNoGrad",
                              [](auto& model) {
                                model->eval();
                                torch::NoGradGuard no_grad;
                                evaluate(model);
                                model->train();
                              }},
                    std::pair{"WithDropoutUnderNoGrad",
                              [](auto& model) {
                                model->module()->norm->eval();
                                torch::NoGradGuard no_grad;
                                evaluate(model);
                                model->train();
                              }},
                    std::pair{"UnderInferenceMode",
                              [](auto& model) {
                                model->eval();
                                c10::InferenceMode inference;
                                evaluate(model);
                                model->train();
                              }}),
    [](const auto& instance) { return std::string(instance.param.first); });

TEST_P(EvaluationsBetweenSteps, DoNotMoveTheNextStepsDropout) {
  Net net;
  Net twin = std::dynamic_pointer_cast<testing_nets::NetImpl>(net->clone());
  const auto options = DataParallelOptions().shards(2).seed(5);
  DataParallel<testing_nets::NetImpl> quiet(net, slices(2), options);
  DataParallel<testing_nets::NetImpl> evaluated(twin, slices(2), options);
  const Tensor x = torch::randn({8, 3, 5, 5});
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(quiet->forward(x).equal(evaluated->forward(x))) << step;
    GetParam().second(evaluated);
  }
  EXPECT_EQ(bytes_of(*net), bytes_of(*twin));
}

TEST(RandomStreams, DrawAnewForEachForwardThatDoesNotTrain) {
  Net net;
  const DataParallel model(net, slices(2));
  model->eval();
  net->drop->train();
  const Tensor x = torch::ones({8, 3, 5, 5});
  torch::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(x).equal(model->forward(x)));
}

}  // namespace
}  // namespace lockstep
