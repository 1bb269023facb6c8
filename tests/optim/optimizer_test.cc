#include "lockstep/optim/optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

using torch::Tensor;

std::vector<Tensor> parameters() {
  torch::manual_seed(1);
  std::vector<Tensor> made{
      torch::randn({100, 333}), torch::randn({7}),
      torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)};
  for (Tensor& tensor : made) tensor.requires_grad_();
  return made;
}

std::vector<Tensor> clones(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone().requires_grad_());
  }
  return copies;
}

void compare(Optimizer& ours, torch::optim::Optimizer& theirs,
             const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (int step = 0; step < 6; ++step) {
    for (size_t p = 0; p < a.size(); ++p) {
      // The second parameter gets its first gradient late.
      if (p == 1 && step < 2) continue;
      const Tensor gradient = torch::randn(a[p].sizes());
      a[p].mutable_grad() = gradient.clone();
      b[p].mutable_grad() = gradient.clone();
    }
    ours.step();
    theirs.step();
    for (size_t p = 0; p < a.size(); ++p) {
      // The fused kernel rounds in a different order.
      EXPECT_TRUE(a[p].allclose(b[p], 1e-5, 1e-6)) << step << " " << p;
    }
  }
}

TEST(Sgd, AgreesWithTorchOptim) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      const auto a = parameters();
      const auto b = clones(a);
      const auto ours =
          sgd(a, SGDOptions(0.1).momentum(momentum).weight_decay(0.01).nesterov(
                     nesterov));
      torch::optim::SGD theirs(b, torch::optim::SGDOptions(0.1)
                                      .momentum(momentum)
                                      .weight_decay(0.01)
                                      .nesterov(nesterov));
      compare(*ours, theirs, a, b);
    }
  }
}

TEST(AdamW, AgreesWithTorchOptim) {
  const auto a = parameters();
  const auto b = clones(a);
  const auto ours = adamw(a, AdamWOptions(0.01).weight_decay(0.1));
  torch::optim::AdamW theirs(
      b, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  compare(*ours, theirs, a, b);
}

TEST(AdamW, DecaysTheParametersThatItIsTold) {
  const auto is_matrix = [](const Tensor& tensor) { return tensor.dim() > 1; };
  const auto a = parameters();
  const auto b = clones(a);
  const auto ours =
      adamw(a, AdamWOptions(0.01).weight_decay(0.1).decays(is_matrix));
  const auto group = [&](std::vector<Tensor> members, double decay) {
    return torch::optim::OptimizerParamGroup(
        std::move(members),
        std::make_unique<torch::optim::AdamWOptions>(
            torch::optim::AdamWOptions(0.01).weight_decay(decay)));
  };
  torch::optim::AdamW theirs({group({b[0], b[2]}, 0.1), group({b[1]}, 0)},
                             torch::optim::AdamWOptions(0.01));
  compare(*ours, theirs, a, b);
}

TEST(Optimizer, GivesTheSameBitsOnEveryNumberOfThreads) {
  const int threads = at::get_num_threads();
  std::vector<std::vector<Tensor>> results;
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    auto p = parameters();
    const auto optimizer = adamw(p, {});
    for (int step = 0; step < 3; ++step) {
      for (Tensor& tensor : p)
        tensor.mutable_grad() = torch::sin(tensor.detach());
      optimizer->step();
    }
    results.push_back(p);
  }
  at::set_num_threads(threads);
  for (size_t p = 0; p < 3; ++p) {
    EXPECT_TRUE(results[1][p].equal(results[0][p]));
    EXPECT_TRUE(results[2][p].equal(results[0][p]));
  }
}

TEST(Optimizer, RestoresItsState) {
  const auto a = parameters();
  const auto first = adamw(a, {});
  for (const Tensor& p : a) p.mutable_grad() = torch::ones_like(p.detach());
  first->step();
  const auto b = clones(a);
  const auto second = adamw(b, {});
  second->load_state_dict(first->state_dict());
  for (const Tensor& p : b) p.mutable_grad() = torch::ones_like(p.detach());
  first->step();
  second->step();
  for (size_t p = 0; p < a.size(); ++p) EXPECT_TRUE(a[p].equal(b[p]));
}

TEST(Optimizer, FollowsParametersThatMoveInMemoryOnly) {
  auto p = parameters();
  const auto optimizer = sgd(p, 1.0);
  p[0].set_data(torch::zeros_like(p[0].detach()));
  p[0].mutable_grad() = torch::ones_like(p[0].detach());
  optimizer->step();
  EXPECT_TRUE(p[0].equal(torch::full_like(p[0].detach(), -1)));
  p[0].mutable_grad().reset();
  p[0].set_data(p[0].detach().to(torch::kFloat64));
  EXPECT_THROW(optimizer->step(), InvalidArgument);
}

TEST(Optimizer, MovesTheVersionsOfWhatItUpdates) {
  for (const bool is_adamw : {false, true}) {
    const auto p = parameters();
    const auto optimizer = is_adamw ? adamw(p, {}) : sgd(p, {});
    const Tensor stale = p[0].square().sum();
    p[0].mutable_grad() = torch::ones_like(p[0]);
    const auto untouched = p[1]._version();
    optimizer->step();
    EXPECT_EQ(p[1]._version(), untouched);
    try {
      stale.backward();
      FAIL() << "no exception";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("modified by an inplace"),
                std::string::npos);
    }
  }
}

TEST(Optimizer, RefusesAParameterThatWasTransposed) {
  auto weight = torch::randn({4, 4}).requires_grad_();
  const auto optimizer = sgd({weight}, SGDOptions().momentum(0.9));
  weight.set_data(weight.detach().t());
  weight.mutable_grad() = torch::ones({4, 4});
  EXPECT_THROW(optimizer->step(), InvalidArgument);
}

TEST(Optimizer, RefusesWhatItCannotUse) {
  EXPECT_THROW(sgd({}, {}), InvalidArgument);
  EXPECT_THROW(sgd({torch::zeros({2}, torch::kLong)}, {}), InvalidArgument);
  EXPECT_THROW(sgd(parameters(), -1), InvalidArgument);
  EXPECT_THROW(sgd(parameters(), SGDOptions(1).nesterov(true)),
               InvalidArgument);
  EXPECT_THROW(adamw(parameters(), AdamWOptions().betas({1, 0.999})),
               InvalidArgument);
  EXPECT_THROW(adamw(parameters(), AdamWOptions().betas({0.9, 1})),
               InvalidArgument);
  const auto optimizer = sgd(parameters(), SGDOptions().momentum(0.9));
  EXPECT_THROW(optimizer->load_state_dict({}), CheckpointError);
}

}  // namespace
}  // namespace lockstep::optim
