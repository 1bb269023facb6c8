#include <cmath>
#include <mutex>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

// Losses that state their weight. The programs of tests/differential compare
// them with plain LibTorch, on shards, ranks and in several calls.
namespace lockstep::weighted_loss_test {
namespace {

using testing_nets::bytes_of;
using testing_nets::Mlp;
using testing_nets::slices;
using torch::Tensor;

constexpr int64_t kIgnored = -100;

size_t digest_of(const torch::nn::Module& module) {
  return std::hash<std::string>()(bytes_of(module));
}

Mlp make_net() {
  // Ranks that are threads share LibTorch's generator.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  Mlp net;
  net->to(torch::kDouble);
  return net;
}

Tensor inputs(int64_t batch) {
  torch::manual_seed(4);
  return torch::randn({batch, 6}, torch::kDouble);
}

/// Targets of which the first `ignored` do not count.
Tensor targets(int64_t batch, int64_t ignored) {
  torch::manual_seed(5);
  Tensor classes = torch::randint(4, {batch});
  classes.narrow(0, 0, ignored).fill_(kIgnored);
  return classes;
}

WeightedLoss loss_of(const Tensor& output, const Tensor& target) {
  return {torch::nn::functional::cross_entropy(output, target),
          target.ne(kIgnored).sum()};
}

Tensor sum_of(const Tensor& output, const Tensor& target) {
  return torch::nn::functional::cross_entropy(
      output, target,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

TEST(WeightedLoss, HasTheBitsOfAPlainMeanIfTheWeightsAreTheSamples) {
  const auto train = [](bool states_weight) {
    Mlp net = make_net();
    const DataParallel model(net, slices(3));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = inputs(13), y = targets(13, 0);
      if (states_weight) {
        model->train_step(x, y, loss_of, optimizer);
      } else {
        model->train_step(x, y, testing_nets::cross_entropy, optimizer);
      }
    }
    return digest_of(*net);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(WeightedLoss, RefusesABatchWithoutUnitsUnlessToldToSkipIt) {
  for (const int ranks : {1, 2}) {
    const int64_t samples = 8 / ranks;
    const Tensor x = inputs(samples), y = targets(samples, samples);
    const Tensor trained = targets(samples, 1);
    const auto task = [&](const ProcessGroup& world) {
      Mlp net = make_net();
      const OverRanks model(
          net, {slices(world.size())[world.rank()]},
          DataParallelOptions().process_group(world).shards(2));
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      const std::string before = bytes_of(*net);
      try {
        model->train_step(x, y, loss_of, optimizer);
        ADD_FAILURE() << "it was accepted";
      } catch (const ParallelError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kEmptyBatch);
      }
      const StepResult skipped =
          model->train_step(x, y, loss_of, optimizer,
                            TrainStepOptions().empty_batch(EmptyBatch::kSkip));
      EXPECT_TRUE(skipped.is_empty);
      EXPECT_TRUE(skipped.is_finite);
      EXPECT_FALSE(skipped.updates());
      EXPECT_EQ(skipped.loss, 0);
      EXPECT_EQ(bytes_of(*net), before);
      // The next batch is trained on as if nothing had been.
      const StepResult next = model->train_step(x, trained, loss_of, optimizer);
      EXPECT_TRUE(next.updates());
      EXPECT_NE(bytes_of(*net), before);
    };
    if (ranks == 1) {
      task(ProcessGroup());
    } else {
      spawn(ranks, task);
    }
  }
}

TEST(WeightedLoss, RefusesWeightsThatAreNone) {
  Mlp net = make_net();
  const DataParallel model(net, slices(2));
  const Tensor x = inputs(8), y = targets(8, 0);
  const auto code_with = [&](const Tensor& weight) {
    try {
      model->train_step(x, y, [&](const Tensor& output, const Tensor& target) {
        return WeightedLoss(sum_of(output, target), weight);
      });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const Tensor& weight :
       {torch::tensor(-1.0), torch::tensor(std::nan("")), torch::ones({2})}) {
    EXPECT_NE(code_with(weight).find("bad-loss"), std::string::npos)
        << code_with(weight);
  }
}

TEST(WeightedLoss, OfASumNeedsNoTotalWeightUnderNoSync) {
  const Tensor x = inputs(4), y = targets(4, 1);
  spawn(2, [&](const ProcessGroup& world) {
    const auto gradients_with = [&](bool states_weight) {
      Mlp net = make_net();
      const DistributedDataParallel model(net, world);
      const auto no_sync = model->no_sync();
      model->train_step(
          x, y,
          [&](const Tensor& output, const Tensor& target) {
            const Tensor sum = sum_of(output, target);
            return states_weight ? WeightedLoss(sum, target.ne(kIgnored).sum())
                                 : WeightedLoss(sum);
          },
          TrainStepOptions().loss_reduction(LossReduction::kSum));
      return net->parameters()[0].grad().clone();
    };
    EXPECT_TRUE(gradients_with(true).equal(gradients_with(false)));
  });
}

}  // namespace
}  // namespace lockstep::weighted_loss_test
