#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/group/parallel_apply.h"
#include "tests/parallel/nets.h"

namespace lockstep::train_step_test {
namespace {

using testing_nets::at_home;
using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::Net;
using testing_nets::NetImpl;
using torch::Tensor;

enum class Rule { kSgd, kAdamW };

std::unique_ptr<torch::optim::Optimizer> make(Rule rule,
                                              std::vector<Tensor> p) {
  if (rule == Rule::kAdamW) {
    return std::make_unique<torch::optim::AdamW>(
        std::move(p), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  }
  return std::make_unique<torch::optim::SGD>(
      std::move(p),
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(
          true));
}

struct Case {
  Rule rule;
  double clip;
  int64_t batch;
};

/// Bytes of a net with BatchNorm and dropout after some steps.
std::string train(int k, int64_t shards, const Case& of) {
  torch::manual_seed(1);
  Net net = at_home(Net());
  const DataParallel model(net, tested::devices(k),
                           DataParallelOptions().shards(shards).seed(2));
  const auto optimizer = make(of.rule, model->parameters());
  for (int step = 0; step < 3; ++step) {
    const Tensor x = at_home(torch::randn({of.batch, 3, 6, 6}));
    const Tensor y = at_home(torch::randint(4, {of.batch}));
    const auto result =
        model->train_step(x, y, cross_entropy, *optimizer,
                          TrainStepOptions().clip_grad_norm(of.clip));
    EXPECT_TRUE(result.is_finite);
    EXPECT_EQ(result.samples, of.batch);
  }
  return bytes_of(*net);
}

void expect_close(const MlpImpl& net, const MlpImpl& twin, double relative,
                  double absolute) {
  for (size_t p = 0; p < net.parameters().size(); ++p) {
    EXPECT_TRUE(
        net.parameters()[p].allclose(twin.parameters()[p], relative, absolute))
        << "parameter " << p;
  }
}

TEST(TrainStep, HasTheSameBitsOnEveryNumberOfDevices) {
  // Each pair of values is in one of them.
  for (const Case& of :
       {Case{Rule::kSgd, 0, 16}, Case{Rule::kSgd, 0.5, 13},
        Case{Rule::kAdamW, 0, 13}, Case{Rule::kAdamW, 0.5, 16}}) {
    for (const int64_t shards : {2, 4, 6}) {
      const auto single = train(1, shards, of);
      for (const int k : {2, 3, 4}) {
        if (k > shards) continue;
        EXPECT_EQ(train(k, shards, of), single)
            << k << " devices, " << shards << " shards, batch " << of.batch;
      }
    }
  }
}

TEST(TrainStep, HasOtherBitsForOtherShards) {
  // Else the test above could not fail.
  const Case of{Rule::kSgd, 0, 16};
  EXPECT_NE(train(1, 2, of), train(1, 4, of));
}

TEST(TrainStep, AgreesWithAPlainLoopAndTorchOptim) {
  for (const int64_t batch : {16, 13}) {
    torch::manual_seed(5);
    Mlp net = at_home(Mlp());
    Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
    const DataParallel model(net, tested::devices(3));
    const auto optimizer = make(Rule::kSgd, model->parameters());
    torch::optim::SGD plain(
        twin->parameters(),
        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(
            true));
    for (int step = 0; step < 10; ++step) {
      const Tensor x = at_home(torch::randn({batch, 6}));
      const Tensor y = at_home(torch::randint(4, {batch}));
      const auto result = model->train_step(x, y, cross_entropy, *optimizer);
      plain.zero_grad();
      const Tensor loss = cross_entropy(twin->forward(x), y);
      loss.backward();
      plain.step();
      EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
    }
    expect_close(*net, *twin, 1e-4, 1e-5);
  }
}

TEST(TrainStep, ClipsGradientsAsTorchDoesAndLeavesShortOnesAlone) {
  const Tensor x = at_home(torch::arange(96.0f).sin().view({16, 6}));
  const Tensor y = at_home(torch::arange(16) % 4);
  for (const double clip : {0.05, 100.0}) {
    Mlp net = at_home(Mlp());
    Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
    const DataParallel model(net, tested::devices(2));
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    torch::optim::SGD plain(twin->parameters(), 1.0);
    const auto result =
        model->train_step(x, y, cross_entropy, optimizer,
                          TrainStepOptions().clip_grad_norm(clip));
    cross_entropy(twin->forward(x), y).backward();
    const double norm =
        torch::nn::utils::clip_grad_norm_(twin->parameters(), clip);
    plain.step();
    EXPECT_NEAR(result.gradient_norm, norm, 1e-5);
    EXPECT_NE(norm > clip, clip == 100.0) << "norm " << norm;
    SCOPED_TRACE(testing::Message() << "clip " << clip);
    expect_close(*net, *twin, 1e-5, 1e-6);
  }
}

TEST(TrainStep, AddsTheGradientOfAParameterThatTheLossUsesItself) {
  const Tensor x = at_home(torch::arange(96.0f).sin().view({16, 6}));
  const Tensor y = at_home(torch::arange(16) % 4);
  const auto penalty = [](const std::vector<Tensor>& parameters) {
    return 0.5 * parameters.front().pow(2).sum();
  };
  for (const int k : {1, 2, 3}) {
    Mlp net = at_home(Mlp());
    Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
    const DataParallel model(net, tested::devices(k));
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    torch::optim::SGD plain(twin->parameters(), 1.0);
    model->train_step(
        x, y,
        [&](const Tensor& output, const Tensor& target) {
          return cross_entropy(output, target) +
                 penalty(net->parameters()).to(output.device());
        },
        optimizer);
    (cross_entropy(twin->forward(x), y) + penalty(twin->parameters()))
        .backward();
    plain.step();
    SCOPED_TRACE(testing::Message() << k << " devices");
    expect_close(*net, *twin, 1e-5, 1e-6);
  }
}

TEST(TrainStep, LeavesGradientsForAnyOptimizer) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const Tensor x = at_home(torch::randn({9, 6}));
  const Tensor y = at_home(torch::randint(4, {9}));
  model->train_step(x, y, cross_entropy);
  const Tensor got = net->parameters()[0].grad().clone();
  model->train_step(x, y, cross_entropy);
  EXPECT_TRUE(net->parameters()[0].grad().allclose(got * 2));
  net->zero_grad();
  cross_entropy(net->forward(x), y).backward();
  EXPECT_TRUE(got.allclose(net->parameters()[0].grad(), 1e-5, 1e-6));
}

TEST(TrainStep, UpdatesNothingWhenTheLossIsNotFinite) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const auto optimizer = make(Rule::kSgd, model->parameters());
  const std::string before = bytes_of(*net);
  Tensor x = at_home(torch::randn({8, 6}));
  x[7][0] = NAN;
  for (const double clip : {0.0, 1.0}) {
    const auto result = model->train_step(
        x, at_home(torch::zeros({8}, torch::kLong)), cross_entropy, *optimizer,
        TrainStepOptions().clip_grad_norm(clip));
    EXPECT_FALSE(result.is_finite);
    EXPECT_EQ(bytes_of(*net), before);
    EXPECT_TRUE(optimizer->state().empty());
  }
}

TEST(TrainStep, SurvivesBatchesOfAnySize) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(4));
  const auto optimizer = make(Rule::kSgd, model->parameters());
  LogCapture log;
  for (const int64_t n : {8, 3, 1, 64, 5}) {
    const auto result = model->train_step(
        at_home(torch::randn({n, 6})), at_home(torch::zeros({n}, torch::kLong)),
        cross_entropy, *optimizer);
    EXPECT_EQ(result.samples, n);
  }
  EXPECT_NE(log.text().find("batch size changed from 8 to 3"),
            std::string::npos);
  EXPECT_NE(log.text().find("idle: " + tested::devices(4)[3].name()),
            std::string::npos)
      << log.text();
}

TEST(TrainStep, NamesTheReplicaThatThrew) {
  Mlp net = at_home(Mlp());
  const auto devices = tested::devices(2);
  const DataParallel model(net, devices);
  const auto optimizer = make(Rule::kSgd, model->parameters());
  const std::string before = bytes_of(*net);
  const auto loss = [](const Tensor& output, const Tensor& target) {
    if (target.max().item<int64_t>() > 3) throw std::out_of_range("class 99");
    return cross_entropy(output, target);
  };
  const Tensor x = at_home(torch::randn({4, 6}));
  // The second shard has the wrong class.
  const Tensor bad = at_home(torch::tensor({0, 0, 0, 99}));
  try {
    model->train_step(x, bad, loss, *optimizer);
    FAIL() << "no exception";
  } catch (const ReplicaError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("replica 1 on " + devices[1].name() + " failed"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("class 99"), std::string::npos) << text;
    EXPECT_THROW(std::rethrow_exception(error.cause()), std::out_of_range);
    EXPECT_EQ(error.code(), ErrorCode::kReplicaFailed);
    EXPECT_EQ(exit_code_of(error), kExitFailed);
  }
  EXPECT_EQ(bytes_of(*net), before);
  EXPECT_TRUE(
      model->train_step(x, torch::zeros_like(bad), loss, *optimizer).is_finite);
}

// One component and one code, also where one error causes another.
TEST(TrainStep, GivesAReplicasErrorTheCodeOfItsCause) {
  Mlp net = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const auto no_loss = [](const Tensor& out, const Tensor&) {
    return out.detach().sum();
  };
  try {
    model->train_step(at_home(torch::randn({4, 6})),
                      at_home(torch::zeros({4}, torch::kLong)), no_loss);
    FAIL() << "no exception";
  } catch (const ReplicaError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kBadLoss);
    EXPECT_EQ(std::count(text.begin(), text.end(), '['), 2) << text;
    const std::string device = tested::devices(2)[0].name();
    EXPECT_TRUE(
        text.starts_with("[parallel] replica 0 on " + device + " failed: "))
        << text;
    EXPECT_TRUE(text.ends_with(" [bad-loss]")) << text;
    EXPECT_THROW(std::rethrow_exception(error.cause()), ParallelError);
    EXPECT_EQ(exit_code_of(error), kExitTrainingFailed);
  }
}

TEST(TrainStep, RefusesAStrangersOptimizerAndALossWithoutGraph) {
  Mlp net = at_home(Mlp());
  Mlp other = at_home(Mlp());
  const DataParallel model(net, tested::devices(2));
  const auto strange = make(Rule::kSgd, other->parameters());
  const Tensor x = at_home(torch::randn({4, 6}));
  const Tensor y = at_home(torch::zeros({4}, torch::kLong));
  EXPECT_THROW(model->train_step(x, y, cross_entropy, *strange),
               InvalidArgument);
  EXPECT_THROW(model->train_step(x, y,
                                 [](const Tensor& out, const Tensor&) {
                                   return out.detach().sum();
                                 }),
               ReplicaError);
}

}  // namespace
}  // namespace lockstep::train_step_test
