// fuse(): the step of an optimizer of LibTorch, made by all threads, compared
// with that optimizer's own step().
#include <array>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/nets.h"

namespace lockstep::fused_optimizer_test {
namespace {

using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::error_of;
using testing_nets::slices;
using torch::Tensor;
using Optimizer = torch::optim::Optimizer;
using Make =
    std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;

/// A net with tensors of less than a block, and of several blocks with a part
/// of a block at the end. The last layer may be left out.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(37, 1003));
    second = register_module("second", torch::nn::Linear(1003, 4));
    extra = register_module("extra", torch::nn::Linear(4, 4));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = second(torch::relu(first(x)));
    return uses_extra ? extra(y) : y;
  }
  bool uses_extra = true;
  torch::nn::Linear first{nullptr}, second{nullptr}, extra{nullptr};
};
TORCH_MODULE(Net);

constexpr int64_t kBatch = 8;
constexpr int kSteps = 6;

Net new_net(torch::Dtype type = torch::kFloat) {
  torch::manual_seed(1);
  Net net;
  net->to(type);
  return net;
}

struct Batch {
  Tensor x, y;
};

Batch batch(int step, torch::Dtype type = torch::kFloat) {
  torch::manual_seed(100 + step);
  return {torch::randn({kBatch, 37}).to(type), torch::randint(4, {kBatch})};
}

template <class Torch, class Options>
Make all_with(Options options) {
  return [=](const std::vector<Tensor>& parameters) {
    return std::make_unique<Torch>(parameters, options);
  };
}

/// Two groups, of which the second one has other options.
template <class Torch, class Options>
Make groups_with(Options options, Options last_options) {
  return [=](const std::vector<Tensor>& parameters) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(
        std::vector<Tensor>(parameters.begin(), parameters.end() - 2));
    groups.emplace_back(
        std::vector<Tensor>(parameters.end() - 2, parameters.end()),
        std::make_unique<Options>(last_options));
    return std::make_unique<Torch>(groups, options);
  };
}

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

struct Rule {
  const char* name;
  Make make;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all{
      {"Sgd", all_with<SGD>(SGDOptions(0.1))},
      {"SgdDecay", all_with<SGD>(SGDOptions(0.1).weight_decay(1e-2))},
      {"Momentum", all_with<SGD>(SGDOptions(0.1).momentum(0.9))},
      {"Dampening",
       all_with<SGD>(
           SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(1e-2))},
      {"Nesterov",
       all_with<SGD>(
           SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-2))},
      {"SgdGroups",
       groups_with<SGD>(SGDOptions(0.1).momentum(0.9), SGDOptions(0.03))},
      {"Adam", all_with<Adam>(AdamOptions(1e-2))},
      {"AdamDecay", all_with<Adam>(AdamOptions(1e-2).weight_decay(1e-2))},
      {"Amsgrad",
       all_with<Adam>(AdamOptions(1e-2).amsgrad(true).weight_decay(1e-2).betas(
           {0.8, 0.97}))},
      {"AdamW", all_with<AdamW>(AdamWOptions(1e-2))},
      {"AdamWAmsgrad",
       all_with<AdamW>(AdamWOptions(1e-2).amsgrad(true).eps(1e-6))},
      {"AdamWGroups", groups_with<AdamW>(AdamWOptions(1e-2).weight_decay(0.1),
                                         AdamWOptions(1e-3).weight_decay(0))},
  };
  return all;
}

/// Returns the state by parameter. torch::save() names parameters by their
/// addresses, so its files can't be compared.
std::string state_of(Optimizer& optimizer) {
  std::string all;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor.defined()) {
      all += "none";
      return;
    }
    all.append(static_cast<const char*>(tensor.const_data_ptr()),
               tensor.nbytes());
  };
  const auto add_adam = [&](const auto& state) {
    all += std::to_string(state.step());
    add(state.exp_avg());
    add(state.exp_avg_sq());
    add(state.max_exp_avg_sq());
  };
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) {
        all += "no state";
        continue;
      }
      const auto* const state = found->second.get();
      if (const auto* sgd =
              dynamic_cast<const torch::optim::SGDParamState*>(state)) {
        add(sgd->momentum_buffer());
      } else if (const auto* adam =
                     dynamic_cast<const torch::optim::AdamParamState*>(state)) {
        add_adam(*adam);
      } else {
        add_adam(dynamic_cast<const torch::optim::AdamWParamState&>(*state));
      }
    }
  }
  return all;
}

/// The parameters and the optimizer's state after a loop.
struct Result {
  std::string parameters;
  std::string state;
  bool operator==(const Result&) const = default;
};

/// Makes steps [first, last), each with another learning rate. `make_step` is
/// called in place of the optimizer's step().
using Step = std::function<void(Optimizer&, int step)>;
template <class Model>
void train(const Model& model, Optimizer& optimizer, const Step& make_step,
           int first = 0, int last = kSteps,
           torch::Dtype type = torch::kFloat) {
  for (int step = first; step < last; ++step) {
    // As a schedule does.
    double lr = 0.02 / (1 + step);
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(lr);
      lr /= 2;
    }
    const Batch data = batch(step, type);
    optimizer.zero_grad();
    cross_entropy(model->forward(data.x), data.y).backward();
    make_step(optimizer, step);
  }
}

Result result_of(const Net& net, Optimizer& optimizer) {
  return {bytes_of(*net), state_of(optimizer)};
}

enum class By { kTorch, kFused, kAlternating };

Step step_of(By by, optim::FusedOptimizer& fused) {
  return [by, &fused](Optimizer& torch, int step) {
    if (by == By::kFused || (by == By::kAlternating && step % 2 == 0)) {
      fused.step();
    } else {
      torch.step();
    }
  };
}

Result trained(const Rule& rule, By by, int devices,
               torch::Dtype type = torch::kFloat) {
  const Net net = new_net(type);
  const DataParallel model(net, slices(devices),
                           DataParallelOptions().shards(4));
  const auto optimizer = rule.make(net->parameters());
  auto fused = optim::fuse(*optimizer, model);
  train(model, *optimizer, step_of(by, fused), 0, kSteps, type);
  return result_of(net, *optimizer);
}

class Fuse : public testing::TestWithParam<size_t> {
 protected:
  static const Rule& rule() { return rules()[GetParam()]; }
};

TEST_P(Fuse, HasTheBitsAndTheStateOfTheOptimizersOwnStep) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const Result expected = trained(rule(), By::kTorch, 2, type);
    for (const int devices : {1, 2, 3}) {
      EXPECT_TRUE(trained(rule(), By::kFused, devices, type) == expected)
          << c10::toString(type) << " on " << devices << " devices";
    }
  }
}

TEST_P(Fuse, MayAlternateWithTheOptimizersOwnStep) {
  EXPECT_TRUE(trained(rule(), By::kAlternating, 2) ==
              trained(rule(), By::kTorch, 2));
}

TEST_P(Fuse, SharesCheckpointsWithTheOptimizersOwnStep) {
  const Result expected = trained(rule(), By::kTorch, 2);
  for (const By writer : {By::kTorch, By::kFused}) {
    const Net net = new_net();
    const DataParallel model(net, slices(2), DataParallelOptions().shards(4));
    std::stringstream parameters, state;
    {
      const auto optimizer = rule().make(net->parameters());
      auto fused = optim::fuse(*optimizer, model);
      train(model, *optimizer, step_of(writer, fused), 0, 4);
      torch::save(net, parameters);
      torch::save(*optimizer, state);
    }
    // The reader has made other steps before.
    const auto optimizer = rule().make(net->parameters());
    auto fused = optim::fuse(*optimizer, model);
    const Step step =
        step_of(writer == By::kTorch ? By::kFused : By::kTorch, fused);
    train(model, *optimizer, step, 10, 12);
    Net loaded = net;
    torch::load(loaded, parameters);
    torch::load(*optimizer, state);
    train(model, *optimizer, step, 4, kSteps);
    EXPECT_TRUE(result_of(net, *optimizer) == expected)
        << (writer == By::kTorch ? "written by torch" : "written by fuse()");
  }
}

// A parameter without a gradient is not changed, and gets no momentum.
TEST_P(Fuse, LeavesParametersWithoutAGradientAlone) {
  const auto bytes = [&](By by) {
    Net net = new_net();
    net->uses_extra = false;
    const DataParallel model(net, slices(2), DataParallelOptions().shards(4));
    const auto optimizer = rule().make(net->parameters());
    auto fused = optim::fuse(*optimizer, model);
    train(model, *optimizer, [&](Optimizer& torch, int step) {
      // A step of torch follows on a step without some of the state.
      step_of(step > 3 ? By::kTorch : by, fused)(torch, step);
      // All parameters have gradients from now on.
      if (step == 2) {
        net->uses_extra = true;
        model->rebuild();
      }
    });
    return bytes_of(*net);
  };
  EXPECT_TRUE(bytes(By::kFused) == bytes(By::kTorch));
}

std::string name_of(const testing::TestParamInfo<size_t>& info) {
  return rules()[info.param].name;
}
INSTANTIATE_TEST_SUITE_P(Rules, Fuse, testing::Range<size_t>(0, 12), name_of);

/// Trains two ranks and returns the bytes of their parameters.
std::array<std::string, 2> over_ranks(const Rule& rule, By by,
                                      const char* backend) {
  std::array<std::string, 2> per_rank;
  const Net initial = new_net();
  spawn(
      2,
      [&](ProcessGroup world) {
        const Net net(std::dynamic_pointer_cast<NetImpl>(initial->clone()));
        const DistributedDataParallel model(net, world);
        const auto optimizer = rule.make(net->parameters());
        auto fused = optim::fuse(*optimizer, model);
        for (int step = 0; step < kSteps; ++step) {
          Tensor x = torch::arange(kBatch * 37, torch::kFloat)
                         .add(step + 7 * world.rank())
                         .sin()
                         .view({kBatch, 37});
          const Tensor y = torch::arange(kBatch) % 4;
          fused.zero_grad();
          cross_entropy(model->forward(x), y).backward();
          if (by == By::kFused) {
            fused.step();
          } else {
            optimizer->step();
          }
          // The ranks share the parameters after this step.
          if (step == 3) model->train_step(x, y, cross_entropy, *optimizer);
        }
        per_rank[static_cast<size_t>(world.rank())] = bytes_of(*net);
      },
      ProcessGroupOptions().backend(backend));
  return per_rank;
}

TEST(FuseOverRanks, HasTheBitsOfTheOptimizersOwnStep) {
  for (const char* backend : {"shm", "tcp"}) {
    for (const char* name : {"Nesterov", "AdamWAmsgrad"}) {
      for (const Rule& rule : rules()) {
        if (std::string(name) != rule.name) continue;
        const auto expected = over_ranks(rule, By::kTorch, backend);
        EXPECT_TRUE(expected[0] == expected[1]) << name << ", " << backend;
        EXPECT_TRUE(over_ranks(rule, By::kFused, backend) == expected)
            << name << ", " << backend;
      }
    }
  }
}

TEST(FuseGroups, FollowsAGroupThatIsAdded) {
  const auto bytes = [](By by) {
    const Net net = new_net();
    const DataParallel model(net, slices(2), DataParallelOptions().shards(4));
    SGD sgd(net->first->parameters(), SGDOptions(0.1).momentum(0.9));
    auto fused = optim::fuse(sgd, model);
    const Step step = step_of(by, fused);
    train(model, sgd, step, 0, 2);
    sgd.add_param_group(torch::optim::OptimizerParamGroup(
        net->second->parameters(), std::make_unique<SGDOptions>(0.2)));
    train(model, sgd, step, 2, 4);
    return bytes_of(*net);
  };
  EXPECT_TRUE(bytes(By::kFused) == bytes(By::kTorch));
}

TEST(FuseErrors, NameWhatIsWrong) {
  const Net net = new_net();
  const Net other = new_net();
  const DataParallel model(net, slices(2));
  const auto error_with = [&](auto& optimizer) {
    return error_of([&] { optim::fuse(optimizer, model); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };

  SGD from_other(other->parameters(), 0.1);
  std::string text = error_with(from_other);
  EXPECT_TRUE(has(text, "not one of the model's")) << text;

  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->parameters());
  SGD lists_twice(groups, SGDOptions(0.1));
  lists_twice.param_groups()[0].params().push_back(net->parameters()[0]);
  text = error_with(lists_twice);
  EXPECT_TRUE(has(text, "listed twice")) << text;

  torch::optim::RMSprop other_type(net->parameters(), 0.1);
  text = error_with(other_type);
  EXPECT_TRUE(has(text, "RMSprop") && has(text, "step()")) << text;

  struct Derived : SGD {
    using SGD::SGD;
  };
  Derived derived(net->parameters(), SGDOptions(0.1));
  text = error_with(derived);
  EXPECT_TRUE(has(text, "Derived")) << text;
}

TEST(FuseErrors, RefuseASparseGradient) {
  Net net = new_net();
  const DataParallel model(net, slices(2));
  SGD sgd(net->parameters(), 0.1);
  auto fused = optim::fuse(sgd, model);
  const std::string before = bytes_of(*net);
  Tensor& weight = net->second->weight;
  weight.mutable_grad() = torch::sparse_coo_tensor(
      torch::zeros({2, 1}, torch::kLong), torch::ones({1}), weight.sizes());
  const std::string text = error_of([&] { fused.step(); });
  EXPECT_NE(text.find("sparse"), std::string::npos) << text;
  EXPECT_EQ(bytes_of(*net), before);
}

}  // namespace
}  // namespace lockstep::fused_optimizer_test
