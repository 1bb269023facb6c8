// ZeRO: ranks that share no memory, each with a part of the optimizer's state
// and, at stage 2, of the gradients.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/optim/torch_state.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::zero_test {
namespace {

using testing_ddp::failure_of;
using testing_ddp::filled;
using testing_ddp::loss_of;
using testing_ddp::targets;
using torch::Tensor;

constexpr int64_t kShards = 4;
constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 3;
constexpr int64_t kFeatures = 300;
constexpr std::array kStages{ZeroStage::kNone, ZeroStage::kOptimizerState,
                             ZeroStage::kGradients};

/// A net with two large weights. The first has about 16.5 blocks of the
/// optimizer, which 3 ranks don't share equally, and the second about 5.5. The
/// biases are small.
struct WideNetImpl : torch::nn::Cloneable<WideNetImpl> {
  WideNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(kFeatures, 900));
    second = register_module("second", torch::nn::Linear(900, 100));
  }
  Tensor forward(Tensor x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

std::shared_ptr<WideNetImpl> new_net() {
  return filled(std::make_shared<WideNetImpl>());
}

Tensor inputs(int64_t first, int64_t count) {
  return torch::arange(first * kFeatures, (first + count) * kFeatures,
                       torch::kFloat)
      .mul(0.37)
      .sin()
      .view({count, kFeatures})
      .to(tested::home());
}

struct Result {
  std::vector<Tensor> parameters;
  std::map<std::string, Tensor> state;
};

bool is_same(const Result& a, const Result& b) {
  if (a.state.size() != b.state.size()) return false;
  for (const auto& [name, tensor] : a.state) {
    if (!torch::equal(tensor, b.state.at(name))) return false;
  }
  for (size_t p = 0; p < a.parameters.size(); ++p) {
    if (!torch::equal(a.parameters[p], b.parameters[p])) return false;
  }
  return a.parameters.size() == b.parameters.size();
}

/// kSteps of AdamW on this rank's part of each batch.
Result trained(const ProcessGroup& world, ZeroStage zero, double clip) {
  const auto net = new_net();
  OverRanks model(net, tested::devices(1),
                  DataParallelOptions()
                      .process_group(world)
                      .shards(kShards)
                      .intra_op_threads(1)
                      .zero(zero));
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  const ShardRange shards =
      shards_of_worker(world.rank(), world.size(), kShards);
  for (int64_t step = 0; step < kSteps; ++step) {
    // The last batch leaves the last shards without samples.
    const int64_t batch = step + 1 < kSteps ? kBatch : 2;
    const SampleRange own = samples_of(shards, batch, kShards);
    const int64_t first = step * kBatch + own.first;
    model->train_step(
        inputs(first, own.count()), targets(first, own.count()), loss_of,
        optimizer,
        TrainStepOptions().clip_grad_norm(clip).total_samples(batch));
  }
  Result result;
  for (const auto& [name, tensor] : optim::state_dict(optimizer)) {
    result.state[name] = model->whole_state(tensor).cpu().clone();
  }
  model->unshare_parameters();
  for (const Tensor& parameter : net->parameters()) {
    result.parameters.push_back(parameter.detach().cpu().clone());
  }
  return result;
}

TEST(Zero, HasTheBitsOfASingleDeviceAtEveryStage) {
  for (const double clip : {0.0, 0.3}) {
    const Result single = trained(ProcessGroup(), ZeroStage::kNone, clip);
    for (const ZeroStage zero : kStages) {
      for (const int ranks : {2, 3, 4}) {
        EXPECT_EQ(failure_of(ranks, "tcp",
                             [&](const ProcessGroup& world) {
                               TORCH_CHECK(
                                   is_same(trained(world, zero, clip), single),
                                   "rank ", world.rank());
                             }),
                  "")
            << "stage " << static_cast<int>(zero) << ", " << ranks
            << " ranks, clip " << clip;
      }
    }
  }
}

/// The code that `act` throws on every rank.
void expect_code(const std::function<void(const ProcessGroup&)>& act,
                 ErrorCode expected) {
  EXPECT_EQ(failure_of(2, "tcp",
                       [&](const ProcessGroup& world) {
                         ErrorCode code{};
                         try {
                           act(world);
                         } catch (const Error& error) {
                           code = error.code();
                         }
                         TORCH_CHECK(code == expected, static_cast<int>(code));
                       }),
            "");
}

DistributedDataParallelOptions with_stage(ZeroStage zero) {
  return DistributedDataParallelOptions().zero(zero).intra_op_threads(1);
}

TEST(Zero, RefusesALoopOfTheUsersOwn) {
  expect_code(
      [](const ProcessGroup& world) {
        DistributedDataParallel model(new_net(), world,
                                      with_stage(ZeroStage::kOptimizerState));
        model->forward(inputs(0, 2));
      },
      ErrorCode::kBadOption);
}

TEST(Zero, RefusesACommHook) {
  expect_code(
      [](const ProcessGroup& world) {
        DistributedDataParallel model(new_net(), world,
                                      with_stage(ZeroStage::kOptimizerState));
        model->register_comm_hook(allreduce_hook);
        torch::optim::SGD optimizer(model->module()->parameters(), 0.1);
        model->train_step(inputs(0, 2), targets(0, 2), loss_of, optimizer);
      },
      ErrorCode::kBadOption);
}

TEST(Zero, RefusesShardsThatAreNoNodesOfTheTree) {
  expect_code(
      [](const ProcessGroup& world) {
        DistributedDataParallel model(
            new_net(), world, with_stage(ZeroStage::kGradients).shards(3));
      },
      ErrorCode::kBadOption);
}

/// Hands `x` through. Its backward runs another one, which adds to the gradient
/// of the layer's weight, of which the graph does not know.
struct Nested : torch::autograd::Function<Nested> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x, torch::nn::LinearImpl* layer) {
    context->saved_data["weight"] = layer->weight;
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_grad(true);
    context->saved_data["weight"].toTensor().sum().backward();
    return {gradients[0], Tensor()};
  }
};

/// The gradient of the last weight is there when that of the second layer is
/// made, and changes after that.
struct NestedNetImpl : torch::nn::Cloneable<NestedNetImpl> {
  NestedNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(kFeatures, 300));
    second = register_module("second", torch::nn::Linear(300, 300));
    third = register_module("third", torch::nn::Linear(300, 300));
    last = register_module("last", torch::nn::Linear(300, 300));
  }
  Tensor forward(Tensor x) {
    x = torch::relu(first(x));
    if (*is_nested) x = Nested::apply(x, last.get());
    x = torch::relu(second(x));
    return last(torch::relu(third(x)));
  }
  // Shared by all copies: a step with another value is not another module.
  std::shared_ptr<bool> is_nested = std::make_shared<bool>(false);
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr},
      last{nullptr};
};

/// Steps of which those from `nested_from` on have a backward within the
/// backward.
std::vector<Tensor> trained_nested(const ProcessGroup& world, ZeroStage zero,
                                   int64_t nested_from) {
  const auto net = filled(std::make_shared<NestedNetImpl>());
  OverRanks model(net, tested::devices(1),
                  DataParallelOptions()
                      .process_group(world)
                      .shards(2)
                      .intra_op_threads(1)
                      .zero(zero));
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const int64_t samples = kBatch / world.size();
  for (int64_t step = 0; step < kSteps; ++step) {
    *net->is_nested = step >= nested_from;
    const int64_t first = step * kBatch + world.rank() * samples;
    model->train_step(inputs(first, samples), targets(first, samples), loss_of,
                      optimizer);
  }
  model->unshare_parameters();
  return testing_ddp::copies(net->parameters());
}

TEST(Zero, SumsGradientsThatChangeAfterTheyCame) {
  const auto single = trained_nested(ProcessGroup(), ZeroStage::kNone, 0);
  for (const ZeroStage zero : {ZeroStage::kNone, ZeroStage::kOptimizerState}) {
    EXPECT_EQ(failure_of(2, "tcp",
                         [&](const ProcessGroup& world) {
                           testing_ddp::check_same(
                               trained_nested(world, zero, 0), single);
                         }),
              "");
  }
}

TEST(Zero, NamesAGradientThatChangedAfterItWasSent) {
  const std::string failure =
      failure_of(2, "tcp", [](const ProcessGroup& world) {
        trained_nested(world, ZeroStage::kNone, 1);
      });
  EXPECT_NE(failure.find("parameter 'last.weight' changed on rank 0"),
            std::string::npos)
      << failure;
}

TEST(Zero, RefusesAGradientThatChangesAfterItWasSent) {
  expect_code(
      [](const ProcessGroup& world) {
        trained_nested(world, ZeroStage::kNone, 1);
      },
      ErrorCode::kRepeatedGradient);
  expect_code(
      [](const ProcessGroup& world) {
        trained_nested(world, ZeroStage::kGradients, 0);
      },
      ErrorCode::kRepeatedGradient);
}

}  // namespace
}  // namespace lockstep::zero_test
