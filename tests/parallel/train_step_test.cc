#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/replicas/parallel_apply.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::Net;
using testing_nets::NetImpl;
using testing_nets::slices;
using torch::Tensor;

enum class Rule { kSgd, kAdamW };

std::unique_ptr<optim::Optimizer> make(Rule rule, std::vector<Tensor> p) {
  if (rule == Rule::kAdamW) {
    return optim::adamw(std::move(p),
                        optim::AdamWOptions(1e-2).weight_decay(0.1));
  }
  return optim::sgd(
      std::move(p),
      optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(true));
}

/// Bytes of a net with BatchNorm and dropout after five steps.
std::string train(int k, int64_t shards, int64_t batch, Rule rule,
                  double clip) {
  torch::manual_seed(1);
  Net net;
  const DataParallel model(net, slices(k),
                           DataParallelOptions().shards(shards).seed(2));
  const auto optimizer = make(rule, model->parameters());
  for (int step = 0; step < 5; ++step) {
    const Tensor x = torch::randn({batch, 3, 6, 6});
    const Tensor y = torch::randint(4, {batch});
    const auto result =
        model->train_step(x, y, cross_entropy, *optimizer,
                          TrainStepOptions().clip_grad_norm(clip));
    EXPECT_TRUE(result.is_finite);
    EXPECT_EQ(result.samples, batch);
  }
  return bytes_of(*net);
}

TEST(TrainStep, HasTheSameBitsOnEveryNumberOfDevices) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdamW}) {
    for (const double clip : {0.0, 0.5}) {
      for (const int64_t batch : {16, 13}) {
        for (const int64_t shards : {2, 4, 6}) {
          const auto single = train(1, shards, batch, rule, clip);
          for (const int k : {2, 3, 4}) {
            if (k > shards) continue;
            EXPECT_EQ(train(k, shards, batch, rule, clip), single)
                << k << " devices, " << shards << " shards, batch " << batch;
          }
        }
      }
    }
  }
}

TEST(TrainStep, HasOtherBitsForOtherShards) {
  // Else the test above could not fail.
  EXPECT_NE(train(1, 2, 16, Rule::kSgd, 0), train(1, 4, 16, Rule::kSgd, 0));
}

TEST(TrainStep, AgreesWithAPlainLoopAndTorchOptim) {
  for (const int64_t batch : {16, 13}) {
    torch::manual_seed(5);
    Mlp net;
    Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
    const DataParallel model(net, slices(3));
    const auto optimizer = make(Rule::kSgd, model->parameters());
    torch::optim::SGD plain(
        twin->parameters(),
        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(
            true));
    for (int step = 0; step < 10; ++step) {
      const Tensor x = torch::randn({batch, 6});
      const Tensor y = torch::randint(4, {batch});
      const auto result = model->train_step(x, y, cross_entropy, *optimizer);
      plain.zero_grad();
      const Tensor loss = cross_entropy(twin->forward(x), y);
      loss.backward();
      plain.step();
      EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
    }
    for (size_t p = 0; p < net->parameters().size(); ++p) {
      EXPECT_TRUE(
          net->parameters()[p].allclose(twin->parameters()[p], 1e-4, 1e-5));
    }
  }
}

TEST(TrainStep, ClipsGradientsAsTorchDoesAndLeavesShortOnesAlone) {
  const Tensor x = torch::arange(96.0f).sin().view({16, 6});
  const Tensor y = torch::arange(16) % 4;
  for (const double clip : {0.05, 100.0}) {
    Mlp net;
    Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
    const DataParallel model(net, slices(2));
    const auto optimizer = optim::sgd(model->parameters(), 1.0);
    torch::optim::SGD plain(twin->parameters(), 1.0);
    const auto result =
        model->train_step(x, y, cross_entropy, *optimizer,
                          TrainStepOptions().clip_grad_norm(clip));
    cross_entropy(twin->forward(x), y).backward();
    const double norm =
        torch::nn::utils::clip_grad_norm_(twin->parameters(), clip);
    plain.step();
    EXPECT_NEAR(result.gradient_norm, norm, 1e-5);
    EXPECT_NE(norm > clip, clip == 100.0) << "norm " << norm;
    for (size_t p = 0; p < net->parameters().size(); ++p) {
      EXPECT_TRUE(
          net->parameters()[p].allclose(twin->parameters()[p], 1e-5, 1e-6))
          << "clip " << clip;
    }
  }
}

TEST(TrainStep, LeavesGradientsForAnyOptimizer) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const Tensor x = torch::randn({9, 6});
  const Tensor y = torch::randint(4, {9});
  model->train_step(x, y, cross_entropy);
  const Tensor got = net->parameters()[0].grad().clone();
  model->train_step(x, y, cross_entropy);
  EXPECT_TRUE(net->parameters()[0].grad().allclose(got * 2));
  net->zero_grad();
  cross_entropy(net->forward(x), y).backward();
  EXPECT_TRUE(got.allclose(net->parameters()[0].grad(), 1e-5, 1e-6));
}

TEST(TrainStep, ClipsAsClipGradNormDoes) {
  torch::manual_seed(6);
  Mlp net;
  Mlp twin = std::dynamic_pointer_cast<MlpImpl>(net->clone());
  const DataParallel model(net, slices(2));
  const auto optimizer = optim::sgd(model->parameters(), 1.0);
  const Tensor x = torch::randn({8, 6}) * 10;
  const Tensor y = torch::randint(4, {8});
  const auto result = model->train_step(
      x, y, cross_entropy, *optimizer, TrainStepOptions().clip_grad_norm(0.01));
  cross_entropy(twin->forward(x), y).backward();
  const double norm =
      torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.01);
  EXPECT_NEAR(result.gradient_norm, norm, 1e-4 * norm);
  torch::NoGradGuard no_grad;
  for (size_t p = 0; p < net->parameters().size(); ++p) {
    EXPECT_TRUE(net->parameters()[p].allclose(
        twin->parameters()[p] - twin->parameters()[p].grad(), 1e-5, 1e-6));
  }
}

TEST(TrainStep, UpdatesNothingWhenTheLossIsNotFinite) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const auto optimizer = make(Rule::kSgd, model->parameters());
  const std::string before = bytes_of(*net);
  Tensor x = torch::randn({8, 6});
  x[7][0] = NAN;
  for (const double clip : {0.0, 1.0}) {
    const auto result =
        model->train_step(x, torch::zeros({8}, torch::kLong), cross_entropy,
                          *optimizer, TrainStepOptions().clip_grad_norm(clip));
    EXPECT_FALSE(result.is_finite);
    EXPECT_EQ(bytes_of(*net), before);
    EXPECT_EQ(optimizer->steps(), 0);
  }
}

TEST(TrainStep, SurvivesBatchesOfAnySize) {
  Mlp net;
  const DataParallel model(net, slices(4));
  const auto optimizer = make(Rule::kSgd, model->parameters());
  LogCapture log;
  for (const int64_t n : {8, 3, 1, 64, 5}) {
    const auto result =
        model->train_step(torch::randn({n, 6}), torch::zeros({n}, torch::kLong),
                          cross_entropy, *optimizer);
    EXPECT_EQ(result.samples, n);
  }
  EXPECT_NE(log.text().find("batch size changed from 8 to 3"),
            std::string::npos);
  EXPECT_NE(log.text().find("idle: cpu:3"), std::string::npos) << log.text();
}

TEST(TrainStep, NamesTheReplicaThatThrew) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const auto optimizer = make(Rule::kSgd, model->parameters());
  const std::string before = bytes_of(*net);
  const Tensor bad = torch::tensor({0, 0, 0, 99});  // in the second shard
  try {
    model->train_step(torch::randn({4, 6}), bad, cross_entropy, *optimizer);
    FAIL() << "no exception";
  } catch (const ReplicaError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("replica 1 on cpu:1 failed"), std::string::npos);
    EXPECT_NE(text.find("99"), std::string::npos) << text;
    EXPECT_THROW(std::rethrow_exception(error.cause()), c10::IndexError);
    EXPECT_EQ(error.code(), ErrorCode::kReplicaFailed);
    EXPECT_EQ(exit_code_of(error), kExitFailed);
  }
  EXPECT_EQ(bytes_of(*net), before);
  EXPECT_TRUE(model
                  ->train_step(torch::randn({4, 6}),
                               torch::zeros({4}, torch::kLong), cross_entropy,
                               *optimizer)
                  .is_finite);
}

// One component and one code, also where one error causes another.
TEST(TrainStep, GivesAReplicasErrorTheCodeOfItsCause) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const auto no_loss = [](const Tensor& out, const Tensor&) {
    return out.detach().sum();
  };
  try {
    model->train_step(torch::randn({4, 6}), torch::zeros({4}, torch::kLong),
                      no_loss);
    FAIL() << "no exception";
  } catch (const ReplicaError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kBadLoss);
    EXPECT_EQ(std::count(text.begin(), text.end(), '['), 2) << text;
    EXPECT_EQ(text.rfind("[parallel] replica 0 on cpu:0 failed: ", 0), 0u);
    EXPECT_TRUE(text.ends_with(" [bad-loss]")) << text;
    EXPECT_THROW(std::rethrow_exception(error.cause()), ParallelError);
    EXPECT_EQ(exit_code_of(error), kExitTrainingFailed);
  }
}

TEST(TrainStep, RefusesAStrangersOptimizerAndALossWithoutGraph) {
  Mlp net;
  Mlp other;
  const DataParallel model(net, slices(2));
  const auto strange = make(Rule::kSgd, other->parameters());
  const Tensor x = torch::randn({4, 6});
  const Tensor y = torch::zeros({4}, torch::kLong);
  EXPECT_THROW(model->train_step(x, y, cross_entropy, *strange),
               InvalidArgument);
  EXPECT_THROW(model->train_step(x, y,
                                 [](const Tensor& out, const Tensor&) {
                                   return out.detach().sum();
                                 }),
               ReplicaError);
}

}  // namespace
}  // namespace lockstep
