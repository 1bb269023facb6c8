#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/log.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/step/not_finite_report.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::not_finite_test {
namespace {

using testing_ddp::filled;
using testing_ddp::inputs;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::slices;
using torch::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void spoil(Tensor tensor, float value) {
  const torch::NoGradGuard no_grad;
  tensor.view(-1)[0] = value;
}

std::shared_ptr<NetImpl> make_net() {
  return filled(std::make_shared<NetImpl>());
}

struct FirstNotFinite : testing::Test {
  void SetUp() override {
    for (auto& parameter : module->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }
  std::string where(const std::string& gradient = "") {
    return first_not_finite({x}, y, handle_of(module.ptr()), gradient);
  }

  torch::nn::Linear module{2, 3};
  Tensor x = torch::zeros({4, 2});
  Tensor y = torch::zeros({4, 3});
};

TEST_F(FirstNotFinite, LooksAtTheBatchThenParametersThenGradients) {
  EXPECT_PRED2(contains, where(), "the loss itself");
  EXPECT_EQ(where("the gradient of 'x'"), "the gradient of 'x'");
  spoil(module->bias.grad(), kInfinity);
  EXPECT_EQ(where("the gradient of 'x'"),
            "the gradient of parameter 'bias' (inf in 1 of 3 elements)");
  spoil(module->weight.grad(), kNan);
  EXPECT_PRED2(contains, where(), "the gradient of parameter 'weight' (nan");
  spoil(module->bias, kNan);
  EXPECT_EQ(where(), "parameter 'bias' (nan in 1 of 3 elements)");
  spoil(y, kNan);
  EXPECT_EQ(where(), "the batch's target (nan in 1 of 12 elements)");
  spoil(x, -kInfinity);
  EXPECT_EQ(where(), "the batch's inputs (inf in 1 of 8 elements)");
}

TEST_F(FirstNotFinite, IsNotDisturbedByAMissingGradient) {
  module->weight.mutable_grad() = Tensor();
  spoil(module->bias.grad(), kNan);
  EXPECT_PRED2(contains, where(), "'bias'");
}

/// Makes steps with an optimizer of some kind over the parameters of a net.
template <class Model>
using Step = std::function<StepResult(const Model& model, const Tensor& x,
                                      const TrainStepOptions& options)>;

template <class Model>
std::vector<Step<Model>> steps_of(const std::shared_ptr<NetImpl>& net) {
  const auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
  const auto rms_prop =
      std::make_shared<torch::optim::RMSprop>(net->parameters());
  const auto step = [](auto optimizer) {
    return [optimizer](const Model& model, const Tensor& x,
                       const TrainStepOptions& options) {
      return model->train_step(x, targets(0, x.size(0)), cross_entropy,
                               *optimizer, options);
    };
  };
  return {step(sgd), step(rms_prop)};
}

TEST(NotFinite, IsReportedOnceWithTheNameOfTheParameter) {
  for (size_t kind = 0; kind < 2; ++kind) {
    for (const double clip : {0.0, 1.0}) {
      LogCapture log;
      const auto net = make_net();
      const DataParallel<NetImpl> model(net, slices(2));
      const auto step = steps_of<DataParallel<NetImpl>>(net)[kind];
      const auto options = TrainStepOptions().clip_grad_norm(clip);
      EXPECT_EQ(step(model, inputs(0, 8), options).not_finite, "");
      EXPECT_EQ(log.lines().size(), 0u) << log.text();
      spoil(net->second->weight, kNan);
      const std::string before = bytes_of(*net);
      for (int repetition = 0; repetition < 2; ++repetition) {
        const StepResult result = step(model, inputs(0, 8), options);
        EXPECT_FALSE(result.is_finite);
        EXPECT_EQ(result.not_finite,
                  "parameter 'second.weight' (nan in 1 of 24 elements)");
      }
      EXPECT_EQ(bytes_of(*net), before);
      ASSERT_EQ(log.lines().size(), 1u) << log.text();
      EXPECT_PRED2(contains, log.text(),
                   "[parallel] train_step() updated nothing, because the loss "
                   "is nan; first seen in parameter 'second.weight'");
    }
  }
}

/// Adds the root of a parameter that is 0, so the parameter's gradient is not
/// finite, though the output is.
struct RootImpl : torch::nn::Cloneable<RootImpl> {
  RootImpl() { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(4, 3));
    root = register_parameter("root", torch::zeros({3}));
  }
  Tensor forward(const Tensor& x) { return linear(x) + root.sqrt(); }
  torch::nn::Linear linear{nullptr};
  Tensor root;
};

TEST(NotFinite, NamesTheGradientThatIsNotFinite) {
  const auto check = [](auto& optimizer, const std::shared_ptr<RootImpl>& net) {
    LogCapture log;
    const DataParallel<RootImpl> model(net, slices(2));
    const std::string before = bytes_of(*net);
    const StepResult result =
        model->train_step(inputs(0, 8), targets(0, 8), cross_entropy, optimizer,
                          TrainStepOptions().clip_grad_norm(1));
    EXPECT_FALSE(result.is_finite);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_EQ(bytes_of(*net), before);
    EXPECT_PRED2(contains, result.not_finite,
                 "the gradient of parameter 'root'");
    ASSERT_EQ(log.lines().size(), 1u) << log.text();
    EXPECT_PRED2(contains, log.text(), "the norm of the gradients is ");
    EXPECT_PRED2(contains, log.text(),
                 "first seen in the gradient of parameter 'root'");
  };
  {
    auto net = std::make_shared<RootImpl>();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    check(optimizer, net);
  }
  {
    auto net = std::make_shared<RootImpl>();
    torch::optim::RMSprop optimizer(net->parameters());
    check(optimizer, net);
  }
}

TEST(NotFinite, NamesTheGradientOfALossThatIsNan) {
  LogCapture log;
  const auto net = make_net();
  const DataParallel<NetImpl> model(net, slices(2));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  // Only the second layer gets gradients.
  for (auto& parameter : net->first->parameters()) {
    parameter.requires_grad_(false);
  }
  const auto loss = [](const Tensor& output, const Tensor&) {
    return (output * kNan).mean();
  };
  const StepResult result =
      model->train_step(inputs(0, 8), targets(0, 8), loss, optimizer);
  EXPECT_EQ(result.not_finite, "the gradient of parameter 'second.weight'");
  EXPECT_PRED2(contains, log.text(), "'second.weight'");
}

TEST(NotFinite, IsReportedWithoutAnOptimizer) {
  LogCapture log;
  const auto net = make_net();
  const DataParallel<NetImpl> model(net, slices(2));
  const auto loss = [](const Tensor& output, const Tensor&) {
    return (output * kInfinity).sum();
  };
  const StepResult result =
      model->train_step(inputs(0, 8), targets(0, 8), loss);
  EXPECT_PRED2(contains, result.not_finite,
               "the gradient of parameter 'first.weight' (");
  EXPECT_PRED2(contains, log.text(), "'first.weight'");
}

TEST(NotFinite, IsNotReportedIfTheScaleOfTheLossIsTheCause) {
  LogCapture log;
  const auto net = make_net();
  const DataParallel<NetImpl> model(net, slices(2));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto options = TrainStepOptions().loss_scale(1e38);
  const auto step = [&](const Tensor& x) {
    return model->train_step(
        x, targets(0, 8),
        [](const Tensor& output, const Tensor& target) {
          return cross_entropy(output, target) * 1e4;
        },
        optimizer, options);
  };
  const StepResult result = step(inputs(0, 8));
  EXPECT_FALSE(result.is_finite);
  EXPECT_PRED2(contains, result.not_finite, "the gradient of parameter '");
  EXPECT_EQ(log.text(), "");
  // No scale makes this loss finite.
  step(inputs(0, 8) * kNan);
  EXPECT_PRED2(contains, log.text(), "first seen in the batch's inputs");
}

TEST(NotFinite, IsNotReportedIfTheOptionsSayNo) {
  LogCapture log;
  const auto net = make_net();
  const DataParallel<NetImpl> model(net, slices(2));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const StepResult result =
      model->train_step(inputs(0, 8) * kNan, targets(0, 8), cross_entropy,
                        optimizer, TrainStepOptions().warn_not_finite(false));
  EXPECT_PRED2(contains, result.not_finite, "the batch's inputs");
  EXPECT_EQ(log.text(), "");
}

struct NotFiniteOnRanks : testing_ddp::OnBackends {};

TEST_P(NotFiniteOnRanks, IsReportedByTheRankThatHasIt) {
  const auto run = [](const auto& model, const auto& net,
                      const ProcessGroup& world, size_t kind) {
    using Model = std::decay_t<decltype(model)>;
    const auto step = steps_of<Model>(net)[kind];
    const auto options = TrainStepOptions();
    TORCH_CHECK(step(model, inputs(4 * world.rank(), 4), options).is_finite);
    const std::string before = bytes_of(*net);
    for (int repetition = 0; repetition < 2; ++repetition) {
      Tensor x = inputs(4 * world.rank(), 4).clone();
      if (world.rank() == 1) spoil(x, kNan);
      const StepResult result = step(model, x, options);
      TORCH_CHECK(!result.is_finite);
      const bool is_here = contains(result.not_finite, "the batch's inputs");
      TORCH_CHECK(is_here == (world.rank() == 1), result.not_finite);
    }
    TORCH_CHECK(bytes_of(*net) == before, "something was updated");
  };
  for (size_t kind = 0; kind < 2; ++kind) {
    for (const bool is_ddp : {false, true}) {
      LogCapture log;
      run_on_ranks(2, [&](const ProcessGroup& world) {
        const auto net = make_net();
        if (is_ddp) {
          run(DistributedDataParallel<NetImpl>(net, world), net, world, kind);
        } else {
          run(OverRanks<NetImpl>(net, {Device{}},
                                 DataParallelOptions().process_group(world)),
              net, world, kind);
        }
      });
      size_t reports = 0;
      for (const std::string& line : log.lines()) {
        if (!contains(line, "updated nothing")) continue;
        ++reports;
        EXPECT_PRED2(contains, line,
                     "[ddp] train_step() updated nothing, because the loss is "
                     "nan on rank 1; first seen in the batch's inputs (nan in "
                     "1 of 16 elements)");
      }
      EXPECT_EQ(reports, 1u) << log.text();
    }
  }
}

TEST_P(NotFiniteOnRanks, NamesTheGradientOnEveryRank) {
  LogCapture log;
  run_on_ranks(2, [](const ProcessGroup& world) {
    const auto net = std::make_shared<RootImpl>();
    const DistributedDataParallel<RootImpl> model(net, world);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const StepResult result = model->train_step(
        inputs(4 * world.rank(), 4), targets(0, 4), cross_entropy, optimizer,
        TrainStepOptions().clip_grad_norm(1));
    TORCH_CHECK(contains(result.not_finite, "the gradient of parameter 'root'"),
                result.not_finite);
  });
  ASSERT_EQ(log.lines().size(), 1u) << log.text();
  EXPECT_PRED2(contains, log.text(), "[ddp] train_step() updated nothing");
  EXPECT_PRED2(contains, log.text(), "'root'");
}

INSTANTIATE_TEST_SUITE_P(Backends, NotFiniteOnRanks,
                         testing::Values("shm", "tcp"));

}  // namespace
}  // namespace lockstep::not_finite_test
