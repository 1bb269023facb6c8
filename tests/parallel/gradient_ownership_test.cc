// Gradients that share memory, and backwards that fail: plain LibTorch on the
// whole batch is the oracle, in double precision.
#include <atomic>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/replicas/parallel_apply.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using testing_nets::slices;
using torch::Tensor;

/// The sum of position and type embeddings, as BERT has it: LibTorch gives both
/// parameters views of one storage as their gradients.
struct EmbeddingsImpl : torch::nn::Cloneable<EmbeddingsImpl> {
  EmbeddingsImpl() { reset(); }
  void reset() override {
    position = register_parameter("position", torch::randn({6}));
    type = register_parameter("type", torch::randn({6}));
    fc = register_module("fc", torch::nn::Linear(6, 4));
  }
  Tensor forward(const Tensor& x) {
    return fc(x + (position.unsqueeze(0) + type.unsqueeze(0)));
  }
  Tensor position, type;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Embeddings);

/// A parameter whose gradient is a view of the output's.
struct OffsetImpl : torch::nn::Cloneable<OffsetImpl> {
  OffsetImpl() { reset(); }
  void reset() override {
    offset = register_parameter("offset", torch::randn({5}));
  }
  Tensor forward(const Tensor& x) { return x + offset.unsqueeze(0); }
  Tensor offset;
};
TORCH_MODULE(Offset);

std::atomic<bool> backward_fails = false;

/// The identity; its backward throws for large values.
struct Fragile : torch::autograd::Function<Fragile> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    context->save_for_backward({x});
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0];
    TORCH_CHECK(!backward_fails || x.abs().max().item<double>() < 1e4,
                "too large");
    return gradients;
  }
};

/// The last layer has its gradient when the backward fails before the first.
struct FragileNetImpl : torch::nn::Cloneable<FragileNetImpl> {
  FragileNetImpl() { reset(); }
  void reset() override {
    first = register_module(
        "first", torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
    last = register_module("last", torch::nn::Linear(6, 4));
  }
  Tensor forward(const Tensor& x) { return last(Fragile::apply(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(FragileNet);

Tensor half_square(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, target);
}

DataParallelOptions shards(int64_t count) {
  return DataParallelOptions().shards(count).intra_op_threads(1);
}

template <class Net>
Net make_net() {
  torch::manual_seed(3);
  Net net;
  net->to(torch::kDouble);
  return net;
}

template <class Net>
Net copy_of(const Net& net) {
  return Net(
      std::dynamic_pointer_cast<typename Net::ContainedType>(net->clone()));
}

void expect_same_gradients(const torch::nn::Module& found,
                           const torch::nn::Module& expected) {
  const auto expected_parameters = expected.named_parameters();
  for (const auto& item : found.named_parameters()) {
    const Tensor gradient = item.value().grad();
    const Tensor plain = expected_parameters[item.key()].grad();
    ASSERT_EQ(gradient.defined(), plain.defined()) << item.key();
    if (!plain.defined()) continue;
    EXPECT_TRUE(torch::allclose(gradient, plain, 1e-10, 1e-12))
        << item.key() << ": off by "
        << (gradient - plain).abs().max().item<double>() << " of "
        << plain.abs().max().item<double>();
  }
}

class SharedStorage : public testing::TestWithParam<int> {};

TEST_P(SharedStorage, OfTwoGradientsGivesThoseOfOneDeviceByBackward) {
  auto net = make_net<Embeddings>();
  auto plain = copy_of(net);
  const Tensor x = torch::randn({16, 6}, torch::kDouble);
  const Tensor y = torch::randn({16, 4}, torch::kDouble);
  half_square(plain->forward(x), y).backward();

  DataParallel model(net, slices(2), shards(GetParam()));
  half_square(model->forward(x), y).backward();
  expect_same_gradients(*net, *plain);
  EXPECT_FALSE(net->position.grad().is_alias_of(net->type.grad()));
}

TEST_P(SharedStorage, OfTwoGradientsGivesThoseOfOneDeviceByTrainStep) {
  auto net = make_net<Embeddings>();
  auto plain = copy_of(net);
  const Tensor x = torch::randn({16, 6}, torch::kDouble);
  const Tensor y = torch::randn({16, 4}, torch::kDouble);
  half_square(plain->forward(x), y).backward();

  DataParallel model(net, slices(2), shards(GetParam()));
  model->train_step(x, y, half_square);
  expect_same_gradients(*net, *plain);
}

TEST_P(SharedStorage, OfTwoGradientsIsClippedOnce) {
  auto net = make_net<Embeddings>();
  auto plain = copy_of(net);
  const Tensor x = torch::randn({16, 6}, torch::kDouble);
  const Tensor y = torch::randn({16, 4}, torch::kDouble);
  half_square(plain->forward(x), y).backward();
  // The oracle scales a copy, because its own gradients share memory as well.
  for (auto& p : plain->parameters()) p.mutable_grad() = p.grad().clone();
  const double norm =
      torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
  torch::optim::SGD(plain->parameters(), torch::optim::SGDOptions(0.5)).step();

  const int64_t count = GetParam();
  DataParallel model(net, slices(count == 1 ? 1 : 2), shards(count));
  auto sgd = optim::sgd(net->parameters(), 0.5);
  const auto result = model->train_step(x, y, half_square, *sgd,
                                        TrainStepOptions().clip_grad_norm(0.1));
  EXPECT_NEAR(result.gradient_norm, norm, 1e-10);
  const auto expected = plain->named_parameters();
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(
        torch::allclose(item.value(), expected[item.key()], 1e-10, 1e-12))
        << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, SharedStorage, testing::Values(2, 4, 8));

TEST(SharedStorageOnOneShard, OfTwoGradientsIsClippedOnce) {
  auto net = make_net<Embeddings>();
  const Tensor before = torch::stack({net->position, net->type}).detach();
  const Tensor x = torch::randn({16, 6}, torch::kDouble);
  const Tensor y = torch::randn({16, 4}, torch::kDouble);
  auto plain = copy_of(net);
  half_square(plain->forward(x), y).backward();
  const Tensor gradient = plain->position.grad().clone();

  DataParallel model(net, slices(1), shards(1));
  auto sgd = optim::sgd(net->parameters(), 1);
  const auto result = model->train_step(x, y, half_square, *sgd,
                                        TrainStepOptions().clip_grad_norm(0.1));
  const Tensor scaled = gradient * (0.1 / (result.gradient_norm + 1e-6));
  const Tensor step =
      before - torch::stack({net->position, net->type}).detach();
  EXPECT_TRUE(torch::allclose(step[0], scaled, 1e-9, 1e-12));
  EXPECT_TRUE(torch::allclose(step[1], scaled, 1e-9, 1e-12));
}

TEST(OutputGradients, AreNotWrittenTo) {
  auto net = make_net<Offset>();
  const DataParallel model(net, slices(2), shards(4));
  const Tensor x = torch::randn({4, 5}, torch::kDouble);
  const Tensor gradient = torch::randn({4, 5}, torch::kDouble);
  const Tensor before = gradient.clone();
  model->forward(x).backward(gradient);
  EXPECT_TRUE(gradient.equal(before));
  EXPECT_TRUE(torch::allclose(net->offset.grad(), before.sum(0)));
}

TEST(OutputGradients, OfAResidualBranchAreThoseOfOneDevice) {
  auto net = make_net<Offset>();
  auto plain = copy_of(net);
  const DataParallel model(net, slices(2), shards(4));
  const auto branch_gradient = [](auto&& forward, const Tensor& x,
                                  Tensor branch) {
    branch = branch.detach().requires_grad_();
    // One gradient flows into the region and past it, to what was computed
    // before and is therefore differentiated after it.
    const Tensor doubled = branch * 2;
    const Tensor output = forward(x) + doubled;
    output.backward(torch::arange(20, torch::kDouble).view({4, 5}));
    return branch.grad();
  };
  const Tensor x = torch::randn({4, 5}, torch::kDouble);
  const Tensor branch = torch::randn({4, 5}, torch::kDouble);
  const auto expected = branch_gradient(
      [&](const Tensor& in) { return plain->forward(in); }, x, branch);
  const auto found = branch_gradient(
      [&](const Tensor& in) { return model->forward(in); }, x, branch);
  EXPECT_TRUE(found.equal(expected));
  expect_same_gradients(*net, *plain);
}

class AFailedBackward : public testing::TestWithParam<int> {};

TEST_P(AFailedBackward, LeavesNothingForTheNext) {
  auto net = make_net<FragileNet>();
  auto plain = copy_of(net);
  const DataParallel model(net, slices(2), shards(GetParam()));
  const Tensor y = torch::randn({8, 4}, torch::kDouble);
  Tensor bad = torch::randn({8, 6}, torch::kDouble);
  bad[7][0] = 1e6;
  backward_fails = true;
  const Tensor loss = half_square(model->forward(bad), y);
  EXPECT_THROW(loss.backward(), ReplicaError);
  EXPECT_THROW(model->train_step(bad, y, half_square), ReplicaError);
  backward_fails = false;
  model->zero_grad();

  const Tensor x = torch::randn({8, 6}, torch::kDouble);
  half_square(plain->forward(x), y).backward();
  half_square(model->forward(x), y).backward();
  expect_same_gradients(*net, *plain);

  model->zero_grad();
  model->train_step(x, y, half_square);
  expect_same_gradients(*net, *plain);
}

INSTANTIATE_TEST_SUITE_P(Shards, AFailedBackward, testing::Values(2, 4));

}  // namespace
}  // namespace lockstep
