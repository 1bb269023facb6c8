#include "lockstep/parallel/data_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/log.h"
#include "lockstep/parallel/group/parallel_apply.h"
#include "tests/parallel/nets.h"

namespace lockstep::data_parallel_test {
namespace {

using testing_nets::at_home;
using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::Net;
using testing_nets::NetImpl;
using torch::Tensor;

class DataParallelModes : public testing::TestWithParam<Replication> {
 protected:
  DataParallelOptions options() const {
    return DataParallelOptions().replication(GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Both, DataParallelModes,
                         testing::Values(Replication::kResident,
                                         Replication::kEveryForward));

TEST_P(DataParallelModes, GivesTheModulesOutputsAndGradients) {
  torch::manual_seed(3);
  for (const int k : {1, 2, 3, 4}) {
    Mlp net = at_home(Mlp());
    const DataParallel model(net, tested::devices(k), options());
    const Tensor x = at_home(torch::randn({13, 6})).requires_grad_();
    const Tensor twin = x.detach().clone().requires_grad_();
    const Tensor y = at_home(torch::randint(4, {13}));

    const Tensor output = model->forward(twin);
    cross_entropy(output, y).backward();
    std::vector<Tensor> gradients;
    for (auto& p : net->parameters()) {
      gradients.push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
    const Tensor expected = net->forward(x);
    cross_entropy(expected, y).backward();

    // Chunks are other matrix products than the whole: not the same bits.
    EXPECT_TRUE(output.allclose(expected, 1e-5, 1e-6));
    EXPECT_TRUE(twin.grad().allclose(x.grad(), 1e-5, 1e-6));
    for (size_t p = 0; p < gradients.size(); ++p) {
      EXPECT_TRUE(
          gradients[p].allclose(net->parameters()[p].grad(), 1e-5, 1e-6))
          << k << " slices, parameter " << p;
    }
  }
}

TEST_P(DataParallelModes, AccumulatesOverBackwards) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2), options());
  const Tensor x = at_home(torch::randn({8, 6}));
  model->forward(x).sum().backward();
  const Tensor once = net->parameters()[0].grad().clone();
  model->forward(x).sum().backward();
  EXPECT_TRUE(net->parameters()[0].grad().allclose(once * 2));
}

TEST_P(DataParallelModes, AllowsTwoForwardsBeforeABackward) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2), options());
  const Tensor a = at_home(torch::randn({8, 6}));
  const Tensor b = at_home(torch::randn({6, 6}));
  (model->forward(a).sum() + model->forward(b).square().sum()).backward();
  const Tensor got = net->parameters()[0].grad().clone();
  net->zero_grad();
  (net->forward(a).sum() + net->forward(b).square().sum()).backward();
  EXPECT_TRUE(got.allclose(net->parameters()[0].grad(), 1e-5, 1e-5));
}

TEST_P(DataParallelModes, KeepsTheFirstShardsBatchNormStatistics) {
  Net net = at_home(Net());
  net->drop->eval();
  const DataParallel model(net, tested::devices(2), options());
  const Tensor x = at_home(torch::randn({8, 3, 5, 5})) * 3 + 1;
  Net alone = std::dynamic_pointer_cast<NetImpl>(net->clone());
  alone->forward(x.narrow(0, 0, 4));
  model->forward(x);
  EXPECT_TRUE(net->norm->running_mean.equal(alone->norm->running_mean));
  EXPECT_TRUE(net->norm->running_var.equal(alone->norm->running_var));
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST_P(DataParallelModes, SeesChangedParametersTypesAndModes) {
  Net net = at_home(Net());
  const DataParallel model(net, tested::devices(2), options());
  const Tensor x = at_home(torch::randn({8, 3, 5, 5}));
  model->forward(x);
  {
    torch::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.mul_(0.5);
  }
  model->eval();
  EXPECT_TRUE(model->forward(x).allclose(net->forward(x), 1e-5, 1e-6));
  model->to(torch::kFloat64);
  EXPECT_TRUE(model->forward(x.to(torch::kFloat64))
                  .allclose(net->forward(x.to(torch::kFloat64))));
  net->conv->weight.set_requires_grad(false);
  model->forward(x.to(torch::kFloat64)).sum().backward();
  EXPECT_FALSE(net->conv->weight.grad().defined());
  EXPECT_TRUE(net->fc->weight.grad().defined());
}

TEST_P(DataParallelModes, MakesNoGraphUnderNoGrad) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2), options());
  torch::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(at_home(torch::randn({4, 6}))).requires_grad());
}

// Its forward() is a template, which has no type of its own.
TEST(DataParallel, WrapsASequential) {
  torch::manual_seed(3);
  const torch::nn::Sequential net = at_home(torch::nn::Sequential(
      torch::nn::Linear(6, 5), torch::nn::ReLU(), torch::nn::Linear(5, 4)));
  const DataParallel model(net, tested::devices(2));
  const Tensor x = at_home(torch::randn({8, 6}));
  EXPECT_TRUE(torch::equal(model->forward(x), net.ptr()->forward(x)));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const std::string before = bytes_of(*net);
  EXPECT_TRUE(
      model->train_step(x, at_home(torch::randint(4, {8})), cross_entropy, sgd)
          .is_finite);
  EXPECT_FALSE(bytes_of(*net) == before);
}

TEST(DataParallel, SharesParametersAmongSlices) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  // In-place changes are there at once: nothing is copied.
  {
    torch::NoGradGuard no_grad;
    net->parameters()[3].fill_(7);
  }
  EXPECT_TRUE(model->forward(at_home(torch::zeros({2, 6})))
                  .allclose(net->forward(at_home(torch::zeros({2, 6})))));
  EXPECT_EQ(model->module().get(), net.ptr().get());
}

TEST(DataParallel, FindsAnInPlaceChangeBetweenForwardAndBackward) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const Tensor loss = model->forward(at_home(torch::randn({4, 6}))).sum();
  {
    torch::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.mul_(2);
  }
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(DataParallel, RunsBackwardTwiceOnlyOverAKeptGraph) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const Tensor loss = model->forward(at_home(torch::randn({4, 6}))).sum();
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = net->parameters()[0].grad().clone();
  loss.backward();
  EXPECT_TRUE(net->parameters()[0].grad().allclose(once * 2));
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(DataParallel, RefusesADoubleBackwardClearly) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const Tensor x = at_home(torch::randn({4, 6})).requires_grad_();
  const Tensor sum = model->forward(x).square().sum();
  try {
    torch::autograd::grad({sum}, {x}, {}, true, /*create_graph=*/true);
    FAIL() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("create_graph"),
              std::string::npos);
  }
}

TEST(DataParallel, DrawsTheSameDropoutOneAfterAnotherAndAtOnce) {
  torch::manual_seed(11);
  Net net = at_home(Net());
  Net twin = std::dynamic_pointer_cast<NetImpl>(net->clone());
  const Tensor x = at_home(torch::randn({8, 3, 5, 5}));
  const auto options = DataParallelOptions().shards(4).seed(5);
  for (const int k : {1, 2, 4}) {
    const DataParallel one(net, tested::devices(1), options);
    const DataParallel many(twin, tested::devices(k), options);
    for (int step = 0; step < 3; ++step) {
      const Tensor a = one->forward(x);
      EXPECT_TRUE(a.equal(many->forward(x))) << k;
    }
    EXPECT_EQ(bytes_of(*net), bytes_of(*twin)) << k;
  }
}

TEST(DataParallel, LeavesTheDefaultRandomStreamAlone) {
  const auto drawn = [] { return torch::rand({3}, tested::home()); };
  torch::manual_seed(4);
  const Tensor expected = drawn();
  Net net = at_home(Net());
  const DataParallel warm(net, tested::devices(2));
  torch::manual_seed(4);
  const DataParallel model(net, tested::devices(2));
  model->forward(at_home(torch::ones({4, 3, 5, 5})));
  EXPECT_TRUE(drawn().equal(expected));
}

struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(int64_t width)
      : fc(register_module("fc", torch::nn::Linear(width, 2))) {}
  std::tuple<Tensor, std::vector<Tensor>> forward(
      const Tensor& x, const c10::Dict<std::string, Tensor>& more,
      double scale) {
    return {fc(x) * scale, {more.at("a") + 1, more.at("b")}};
  }
  torch::nn::Linear fc;
};

TEST(DataParallel, TakesAndReturnsSeveralValuesAndAFactory) {
  auto net = at_home(std::make_shared<ManyImpl>(3));
  const DataParallel<ManyImpl> model(
      net, [] { return std::make_shared<ManyImpl>(3); }, tested::devices(2));
  const Tensor x = at_home(torch::randn({5, 3}));
  c10::Dict<std::string, Tensor> more;
  more.insert("a", at_home(torch::arange(5)));
  more.insert("b", at_home(torch::randn({5, 2})));
  const auto [y, list] = model->forward(x, more, 2.0);
  EXPECT_TRUE(y.allclose(net->fc(x) * 2.0));
  EXPECT_TRUE(list[0].equal(at_home(torch::arange(5)) + 1));
  EXPECT_TRUE(list[1].equal(more.at("b")));
}

TEST(DataParallel, RunsTorchScript) {
  torch::jit::Module module("m");
  module.register_parameter("w", at_home(torch::randn({3, 2})).requires_grad_(),
                            /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return {'y': x @ self.w}\n");
  const DataParallel model(module, tested::devices(2));
  const Tensor x = at_home(torch::randn({5, 3}));
  const Tensor y = model->forward({x}).toGenericDict().at("y").toTensor();
  const Tensor w = module.attr("w").toTensor();
  EXPECT_TRUE(y.allclose(x.matmul(w)));
  y.sum().backward();
  EXPECT_TRUE(w.grad().allclose(x.t().matmul(at_home(torch::ones({5, 2})))));

  // The replicas' parameters are leaves of their own.
  const Tensor before = w.detach().clone();
  w.mutable_grad().reset();
  torch::optim::SGD sgd(std::vector<torch::Tensor>{w}, 1);
  model->train_step(
      {x}, at_home(torch::zeros({5, 2})),
      [](const c10::IValue& output, const c10::IValue& target) {
        const Tensor predicted = output.toGenericDict().at("y").toTensor();
        return (predicted - target.toTensor()).sum();
      },
      sgd, TrainStepOptions().loss_reduction(LossReduction::kSum));
  const Tensor expected = x.t().matmul(at_home(torch::ones({5, 2})));
  EXPECT_TRUE((before - w.detach()).allclose(expected, 1e-5, 1e-5));
  EXPECT_FALSE(w.grad().defined());
}

struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  TiedImpl() { reset(); }
  void reset() override {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_parameter("b", a->weight);
  }
  Tensor forward(const Tensor& x) { return a(x).matmul(b); }
  torch::nn::Linear a{nullptr};
  Tensor b;
};
TORCH_MODULE(Tied);

TEST(DataParallel, SumsTheGradientsOfATiedParameter) {
  Tied net = at_home(Tied());
  const DataParallel model(net, tested::devices(2));
  const Tensor x = at_home(torch::randn({6, 4}));
  model->forward(x).sum().backward();
  const Tensor got = net->a->weight.grad().clone();
  net->zero_grad();
  net->forward(x).sum().backward();
  EXPECT_TRUE(got.allclose(net->a->weight.grad(), 1e-5, 1e-5));
}

TEST(DataParallel, AveragesBuffersWhenAsked) {
  Net net = at_home(Net());
  net->drop->eval();
  const DataParallel model(net, tested::devices(2),
                           DataParallelOptions().buffers(Buffers::kMean));
  const Tensor x = at_home(torch::randn({8, 3, 5, 5})) * 3 + 1;
  Net first = std::dynamic_pointer_cast<NetImpl>(net->clone());
  Net second = std::dynamic_pointer_cast<NetImpl>(net->clone());
  first->forward(x.narrow(0, 0, 4));
  second->forward(x.narrow(0, 4, 4));
  model->forward(x);
  EXPECT_TRUE(net->norm->running_mean.equal(
      (first->norm->running_mean + second->norm->running_mean) / 2));
}

TEST(DataParallel, HasNothingToAverageWithoutBuffers) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2),
                           DataParallelOptions().buffers(Buffers::kMean));
  const Tensor x = at_home(torch::randn({8, 6}));
  EXPECT_TRUE(model->forward(x).allclose(net->forward(x)));
}

}  // namespace
}  // namespace lockstep::data_parallel_test
