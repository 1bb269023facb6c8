#include "lockstep/optim/block_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "tests/optim/cut_optimizer.h"

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

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Sgd = CutOptimizer<torch::optim::SGD>;
using AdamW = CutOptimizer<torch::optim::AdamW>;

/// Makes six steps with both optimizers. The second parameter gets its first
/// gradient late.
template <class Ours>
void compare(Ours& ours, torch::optim::Optimizer& theirs,
             const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (int step = 0; step < 6; ++step) {
    for (size_t p = 0; p < a.size(); ++p) {
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

TEST(BlockOptimizer, AgreesWithSgd) {
  for (const auto first : {FirstMomentum::kGradient, FirstMomentum::kZeros}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        const auto a = parameters();
        const auto b = clones(a);
        const auto options =
            SGDOptions(0.1).momentum(momentum).weight_decay(0.01).nesterov(
                nesterov);
        Sgd ours(a, options, first);
        torch::optim::SGD theirs(b, options);
        compare(ours, theirs, a, b);
      }
    }
  }
}

TEST(BlockOptimizer, AgreesWithAdamW) {
  const auto a = parameters();
  const auto b = clones(a);
  const auto options = AdamWOptions(0.01).weight_decay(0.1);
  AdamW ours(a, options);
  torch::optim::AdamW theirs(b, options);
  compare(ours, theirs, a, b);
}

TEST(BlockOptimizer, GivesTheSameBitsOnEveryNumberOfThreads) {
  const int threads = at::get_num_threads();
  std::vector<std::vector<Tensor>> results;
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    auto p = parameters();
    AdamW optimizer(p, AdamWOptions());
    for (int step = 0; step < 3; ++step) {
      for (Tensor& tensor : p)
        tensor.mutable_grad() = torch::sin(tensor.detach());
      optimizer.step();
    }
    results.push_back(p);
  }
  at::set_num_threads(threads);
  for (size_t p = 0; p < 3; ++p) {
    EXPECT_TRUE(results[1][p].equal(results[0][p]));
    EXPECT_TRUE(results[2][p].equal(results[0][p]));
  }
}

void set_ones(const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters) {
    p.mutable_grad() = torch::ones_like(p.detach());
  }
}

TEST(BlockOptimizer, RestoresItsState) {
  const auto a = parameters();
  AdamW first(a, AdamWOptions());
  set_ones(a);
  first.step();
  const auto b = clones(a);
  AdamW second(b, AdamWOptions());
  second->load_state_dict(first->state_dict());
  set_ones(b);
  first.step();
  second.step();
  for (size_t p = 0; p < a.size(); ++p) EXPECT_TRUE(a[p].equal(b[p]));
}

// As checkpoints of runs were written before there was has_momentum_buffer.
TEST(BlockOptimizer, ReadsMomentumWithoutAListAsThatOfAllParameters) {
  const auto options = SGDOptions(0.1).momentum(0.9).dampening(0.5);
  const auto a = parameters();
  Sgd first(a, options);
  set_ones(a);
  first.step();
  NamedState state = first->state_dict();
  EXPECT_EQ(state.erase(kHasMomentumBuffer), 1);
  const auto b = clones(a);
  Sgd second(b, options);
  second->load_state_dict(state);
  set_ones(b);
  first.step();
  second.step();
  for (size_t p = 0; p < a.size(); ++p) EXPECT_TRUE(a[p].equal(b[p]));
}

TEST(BlockOptimizer, NamesNoListOfMomentumThatBeginsWithZeros) {
  Sgd sgd(parameters(), SGDOptions(0.1).momentum(0.9), FirstMomentum::kZeros);
  const NamedState state = sgd->state_dict();
  EXPECT_EQ(state.size(), 3);
  EXPECT_TRUE(state.contains("momentum_buffer.2"));
}

TEST(BlockOptimizer, FollowsParametersThatMoveInMemoryOnly) {
  auto p = parameters();
  Sgd optimizer(p, 1.0);
  p[0].set_data(torch::zeros_like(p[0].detach()));
  p[0].mutable_grad() = torch::ones_like(p[0].detach());
  optimizer.step();
  EXPECT_TRUE(p[0].equal(torch::full_like(p[0].detach(), -1)));
  p[0].mutable_grad().reset();
  p[0].set_data(p[0].detach().to(torch::kFloat64));
  EXPECT_THROW(optimizer.step(), InvalidArgument);
}

// A new one is often at the address of one that is gone.
TEST(BlockOptimizer, IsForNoOptimizerWithoutStateAfterACast) {
  const auto p = parameters();
  torch::optim::SGD torch(p, 0.1);
  const BlockOptimizer blocks(torch);
  EXPECT_TRUE(blocks.is_for(torch));
  for (Tensor tensor : p) tensor.set_data(tensor.detach().to(torch::kFloat64));
  EXPECT_FALSE(blocks.is_for(torch));
}

template <class Cut, class Options>
void expect_versions_move(const Options& options) {
  const auto p = parameters();
  Cut optimizer(p, options);
  const Tensor stale = p[0].square().sum();
  p[0].mutable_grad() = torch::ones_like(p[0]);
  const auto untouched = p[1]._version();
  optimizer.step();
  EXPECT_EQ(p[1]._version(), untouched);
  try {
    stale.backward();
    FAIL() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("modified by an inplace"),
              std::string::npos);
  }
}

TEST(BlockOptimizer, MovesTheVersionsOfWhatItUpdates) {
  expect_versions_move<Sgd>(SGDOptions(0.1));
  expect_versions_move<AdamW>(AdamWOptions());
}

TEST(BlockOptimizer, RefusesAParameterThatWasTransposed) {
  auto weight = torch::randn({4, 4}).requires_grad_();
  Sgd optimizer({weight}, SGDOptions(0.1).momentum(0.9));
  weight.set_data(weight.detach().t());
  weight.mutable_grad() = torch::ones({4, 4});
  EXPECT_THROW(optimizer.step(), InvalidArgument);
}

TEST(BlockOptimizer, RefusesWhatItCannotUse) {
  const auto make = [](auto torch) { BlockOptimizer{torch}; };
  using torch::optim::SGD;
  EXPECT_THROW(make(SGD(std::vector<Tensor>(), 0.1)), InvalidArgument);
  EXPECT_THROW(make(SGD(std::vector{torch::zeros({2}, torch::kLong)}, 0.1)),
               InvalidArgument);
  EXPECT_THROW(make(torch::optim::RMSprop(parameters())), InvalidArgument);
  const Tensor twice = torch::zeros({2}).requires_grad_();
  SGD listed(std::vector{twice}, 0.1);
  listed.param_groups()[0].params().push_back(twice);
  EXPECT_THROW(BlockOptimizer{listed}, InvalidArgument);
  EXPECT_EQ(BlockOptimizer::adopt(listed, {}), nullptr);
  Sgd optimizer(parameters(), SGDOptions(0.1).momentum(0.9));
  EXPECT_THROW(optimizer->load_state_dict({}), CheckpointError);
}

// A wrapper that is gone had divided it between devices.
TEST(BlockOptimizer, RefusesStateThatIsElsewhere) {
  const auto p = parameters();
  torch::optim::AdamW torch(p, AdamWOptions());
  *find_or_add_state(torch, p[0]).step = 3;
  BlockOptimizer blocks(torch);
  EXPECT_THROW(blocks.follow(), InvalidArgument);
}

/// Makes two steps, saves the state by name, and loads it into a new optimizer.
/// Both then make the same step.
template <class Torch, class Options>
void expect_names_are_enough(const Options& options) {
  const auto a = parameters();
  Torch first(a, options);
  for (int step = 0; step < 2; ++step) {
    for (size_t p = 0; p < a.size(); ++p) {
      // The second parameter has no gradient.
      if (p != 1) a[p].mutable_grad() = torch::sin(a[p].detach());
    }
    first.step();
  }
  const NamedState state = state_dict(first);
  const auto b = clones(a);
  Torch second(b, options);
  load_state_dict(second, state);
  for (size_t p = 0; p < a.size(); ++p) {
    for (const auto* all : {&a, &b}) {
      (*all)[p].mutable_grad() = torch::cos(a[p].detach());
    }
  }
  first.step();
  second.step();
  for (size_t p = 0; p < a.size(); ++p) EXPECT_TRUE(a[p].equal(b[p])) << p;
  // Nothing is changed unless all of it fits.
  NamedState other = state_dict(second);
  for (auto& [name, tensor] : other) tensor = tensor.clone();
  NamedState broken = other;
  broken.erase(std::prev(broken.end()));
  for (auto& [name, tensor] : broken) tensor = torch::ones_like(tensor);
  EXPECT_THROW(load_state_dict(second, broken), CheckpointError);
  for (const auto& [name, tensor] : state_dict(second)) {
    EXPECT_TRUE(tensor.equal(other.at(name))) << name;
  }
}

TEST(NamedState, IsAllThatAnOptimizerKeeps) {
  using namespace torch::optim;
  expect_names_are_enough<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2));
  expect_names_are_enough<Adam>(AdamOptions(0.1).amsgrad(true));
  expect_names_are_enough<torch::optim::AdamW>(AdamWOptions(0.1));
  expect_names_are_enough<RMSprop>(
      RMSpropOptions(0.1).momentum(0.5).centered(true));
  expect_names_are_enough<Adagrad>(AdagradOptions(0.1));
}

}  // namespace
}  // namespace lockstep::optim
