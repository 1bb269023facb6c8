// train_step() with LibTorch's own optimizers: the values of a plain loop, the
// same bits on any devices and ranks, and a state that stays the optimizer's.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::torch_optim_test {
namespace {

using testing_nets::at_home;
using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using torch::Tensor;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr int64_t kBatch = 12;
constexpr int64_t kShards = 4;

enum class Rule { kSgd, kNesterov, kAdam, kAmsgrad, kAdamW, kRmsProp };

/// Two groups: all but the last two parameters, and those with another rate.
std::unique_ptr<torch::optim::Optimizer> make(Rule rule,
                                              std::vector<Tensor> parameters) {
  const auto cut = parameters.end() - 2;
  const std::vector<Tensor> first(parameters.begin(), cut);
  const std::vector<Tensor> last(cut, parameters.end());
  const auto groups = [&](auto options, auto last_options) {
    Groups both;
    both.emplace_back(first);
    both.emplace_back(last,
                      std::make_unique<decltype(last_options)>(last_options));
    return std::make_pair(both, options);
  };
  switch (rule) {
    case Rule::kSgd: {
      const auto [both, options] =
          groups(torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.3),
                 torch::optim::SGDOptions(0.05).weight_decay(1e-2));
      return std::make_unique<torch::optim::SGD>(both, options);
    }
    case Rule::kNesterov: {
      const auto [both, options] =
          groups(torch::optim::SGDOptions(0.1).momentum(0.8).nesterov(true),
                 torch::optim::SGDOptions(0.01).momentum(0.5));
      return std::make_unique<torch::optim::SGD>(both, options);
    }
    case Rule::kAdam:
    case Rule::kAmsgrad: {
      const auto [both, options] = groups(
          torch::optim::AdamOptions(1e-2).amsgrad(rule == Rule::kAmsgrad),
          torch::optim::AdamOptions(1e-3).weight_decay(1e-2).betas(
              {0.8, 0.99}));
      return std::make_unique<torch::optim::Adam>(both, options);
    }
    case Rule::kAdamW: {
      const auto [both, options] =
          groups(torch::optim::AdamWOptions(1e-2).weight_decay(0.1),
                 torch::optim::AdamWOptions(1e-3).weight_decay(0));
      return std::make_unique<torch::optim::AdamW>(both, options);
    }
    case Rule::kRmsProp: {
      const auto [both, options] =
          groups(torch::optim::RMSpropOptions(1e-2).momentum(0.5),
                 torch::optim::RMSpropOptions(1e-3));
      return std::make_unique<torch::optim::RMSprop>(both, options);
    }
  }
  return nullptr;
}

constexpr std::array kRules{Rule::kSgd,     Rule::kNesterov, Rule::kAdam,
                            Rule::kAmsgrad, Rule::kAdamW,    Rule::kRmsProp};

Mlp new_mlp() {
  torch::manual_seed(1);
  Mlp net;
  net->to(torch::kDouble);
  return at_home(net);
}

struct Batches {
  std::vector<Tensor> x, y;
};

Batches batches(int steps) {
  torch::manual_seed(2);
  Batches all;
  for (int step = 0; step < steps; ++step) {
    all.x.push_back(torch::randn({kBatch, 6}, torch::kDouble));
    all.y.push_back(torch::randint(4, {kBatch}));
  }
  return all;
}

/// Bytes after six steps, of which the learning rate falls in the last three.
template <typename Model>
void train(Model& model, torch::optim::Optimizer& optimizer,
           const Batches& data, int64_t begin, int64_t end, double clip = 0) {
  torch::optim::StepLR schedule(optimizer, 3, 0.5);
  for (size_t step = 0; step < data.x.size(); ++step) {
    model->train_step(at_home(data.x[step].slice(0, begin, end)),
                      at_home(data.y[step].slice(0, begin, end)), cross_entropy,
                      optimizer, TrainStepOptions().clip_grad_norm(clip));
    schedule.step();
  }
}

std::string bytes_on(int devices, Rule rule, double clip) {
  Mlp net = new_mlp();
  const DataParallel model(net, tested::devices(devices),
                           DataParallelOptions().shards(kShards));
  const auto optimizer = make(rule, net->parameters());
  train(model, *optimizer, batches(6), 0, kBatch, clip);
  return bytes_of(*net);
}

TEST(TorchOptim, GivesTheValuesOfAPlainLoop) {
  for (const Rule rule : kRules) {
    for (const double clip : {0.0, 0.2}) {
      Mlp net = new_mlp();
      Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
      const Batches data = batches(6);
      const DataParallel model(net, tested::devices(2),
                               DataParallelOptions().shards(kShards));
      const auto optimizer = make(rule, net->parameters());
      train(model, *optimizer, data, 0, kBatch, clip);

      const auto plain = make(rule, twin->parameters());
      torch::optim::StepLR schedule(*plain, 3, 0.5);
      for (size_t step = 0; step < data.x.size(); ++step) {
        plain->zero_grad();
        const Tensor x = at_home(data.x[step]), y = at_home(data.y[step]);
        cross_entropy(twin->forward(x), y).backward();
        if (clip > 0) {
          torch::nn::utils::clip_grad_norm_(twin->parameters(), clip);
        }
        plain->step();
        schedule.step();
      }
      // The sum over shards rounds in another order; in double that is about
      // 1e-16 of a gradient, which Adam divides by its own size.
      for (size_t p = 0; p < net->parameters().size(); ++p) {
        EXPECT_TRUE(torch::allclose(net->parameters()[p], twin->parameters()[p],
                                    1e-9, 1e-10))
            << "rule " << static_cast<int>(rule) << ", clip " << clip
            << ", parameter " << p;
      }
    }
  }
}

TEST(TorchOptim, HasTheSameBitsOnEveryNumberOfDevices) {
  for (const Rule rule : kRules) {
    for (const double clip : {0.0, 0.2}) {
      const std::string single = bytes_on(1, rule, clip);
      for (const int devices : {2, 3, 4}) {
        EXPECT_EQ(bytes_on(devices, rule, clip), single)
            << "rule " << static_cast<int>(rule) << ", " << devices
            << " devices, clip " << clip;
      }
    }
  }
}

class TorchOptimOverRanks : public testing_ddp::OnBackends {};

TEST_P(TorchOptimOverRanks, HasTheBitsOfASingleDevice) {
  for (const Rule rule : kRules) {
    const std::string single = bytes_on(1, rule, 0);
    const Batches data = batches(6);
    Mlp initial = new_mlp();
    initial->to(torch::kCPU);
    run_on_ranks(2, [&](const ProcessGroup& world) {
      const Mlp net =
          at_home(Mlp(std::dynamic_pointer_cast<MlpImpl>(initial->clone())));
      const OverRanks model(net, tested::devices(1),
                            DataParallelOptions()
                                .process_group(world)
                                .shards(kShards)
                                .intra_op_threads(1));
      const auto optimizer = make(rule, net->parameters());
      const int64_t half = kBatch / 2;
      train(model, *optimizer, data, world.rank() * half,
            (world.rank() + 1) * half);
      model->unshare_parameters();
      TORCH_CHECK(bytes_of(*net) == single, "rule ", static_cast<int>(rule));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TorchOptimOverRanks,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

// The state is the optimizer's own: what torch::save() writes is complete.
TEST(TorchOptim, GoesOnFromWhatTorchSaveWrote) {
  for (const Rule rule : kRules) {
    const Batches data = batches(6);
    const auto part = [&](size_t first, size_t last) {
      const auto cut = [&](const std::vector<Tensor>& all) {
        return std::vector<Tensor>(all.begin() + static_cast<ptrdiff_t>(first),
                                   all.begin() + static_cast<ptrdiff_t>(last));
      };
      return Batches{cut(data.x), cut(data.y)};
    };
    Mlp whole = new_mlp();
    {
      const DataParallel model(whole, tested::devices(2));
      const auto optimizer = make(rule, whole->parameters());
      train(model, *optimizer, part(0, 2), 0, kBatch);
      train(model, *optimizer, part(2, 4), 0, kBatch);
    }
    Mlp resumed = new_mlp();
    const DataParallel model(resumed, tested::devices(2));
    std::stringstream file;
    {
      const auto optimizer = make(rule, resumed->parameters());
      train(model, *optimizer, part(0, 2), 0, kBatch);
      torch::save(*optimizer, file);
    }
    const auto optimizer = make(rule, resumed->parameters());
    torch::load(*optimizer, file);
    train(model, *optimizer, part(2, 4), 0, kBatch);
    EXPECT_EQ(bytes_of(*resumed), bytes_of(*whole))
        << "rule " << static_cast<int>(rule);
  }
}

// A class that derives from SGD may have another step(): it is called.
TEST(TorchOptim, CallsStepOfAnOptimizerThatItDoesNotKnow) {
  struct Sign : torch::optim::SGD {
    using SGD::SGD;
    Tensor step(LossClosure = nullptr) override {
      torch::NoGradGuard no_grad;
      for (Tensor& parameter : parameters()) {
        parameter.sub_(parameter.grad().sign(), 0.25);
      }
      ++calls;
      return {};
    }
    int calls = 0;
  };
  Mlp net = new_mlp();
  const Tensor before = net->parameters()[0].detach().clone();
  const DataParallel model(net, tested::devices(2));
  Sign optimizer(net->parameters(), torch::optim::SGDOptions(1));
  const Batches data = batches(1);
  model->train_step(data.x[0], data.y[0], cross_entropy, optimizer);
  EXPECT_EQ(optimizer.calls, 1);
  const Tensor moved = (net->parameters()[0] - before).abs();
  EXPECT_TRUE(
      ((moved == 0) | ((moved - 0.25).abs() < 1e-12)).all().item<bool>());
  EXPECT_GT(moved.sum().item<double>(), 0);
  EXPECT_FALSE(net->parameters()[0].grad().defined());
}

// Objects on the stack often follow each other at one address.
TEST(TorchOptim, MayBeReplacedByAnotherTypeAtTheSameAddress) {
  using torch::optim::AdamW;
  using torch::optim::SGD;
  const Batches data = batches(4);
  const auto two_steps = [&](const auto& model, auto& optimizer, size_t first) {
    for (size_t b = first; b < first + 2; ++b) {
      model->train_step(data.x[b], data.y[b], cross_entropy, optimizer);
    }
  };
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);

  Mlp net = new_mlp();
  const DataParallel model(net, tested::devices(2));
  constexpr size_t kBytes = std::max(sizeof(SGD), sizeof(AdamW));
  alignas(std::max_align_t) std::array<std::byte, kBytes> memory;
  auto* first = new (memory.data()) SGD(net->parameters(), options);
  two_steps(model, *first, 0);
  std::destroy_at(first);
  auto* second = new (memory.data()) AdamW(net->parameters(), 1e-2);
  two_steps(model, *second, 2);
  std::destroy_at(second);

  // Each optimizer has a wrapper that never saw the other one.
  Mlp twin = new_mlp();
  SGD sgd(twin->parameters(), options);
  two_steps(DataParallel(twin, tested::devices(2)), sgd, 0);
  AdamW adam(twin->parameters(), 1e-2);
  two_steps(DataParallel(twin, tested::devices(2)), adam, 2);
  EXPECT_EQ(bytes_of(*net), bytes_of(*twin));
}

TEST(TorchOptim, UpdatesNothingWhenTheLossIsNotFinite) {
  for (const Rule rule : {Rule::kSgd, Rule::kRmsProp}) {
    Mlp net = new_mlp();
    const std::string before = bytes_of(*net);
    const DataParallel model(net, tested::devices(2));
    const auto optimizer = make(rule, net->parameters());
    Batches data = batches(1);
    data.x[0][0][0] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(
        model->train_step(data.x[0], data.y[0], cross_entropy, *optimizer)
            .is_finite);
    EXPECT_EQ(bytes_of(*net), before);
    EXPECT_FALSE(net->parameters()[0].grad().defined());
  }
}

}  // namespace
}  // namespace lockstep::torch_optim_test
