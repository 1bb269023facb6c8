#include <cmath>
#include <mutex>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "lockstep/base/error.h"
#include "lockstep/losses/cross_entropy.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/nets.h"

// A loss that states its weight trains as plain LibTorch does on the whole
// batch, however its units are distributed over shards, ranks and micro-steps.
namespace lockstep::weighted_loss_test {
namespace {

using testing_nets::bytes_of;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
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

/// The gradients of plain LibTorch on the whole batch.
std::vector<Tensor> plain_gradients(const Tensor& x, const Tensor& y,
                                    double& loss) {
  Mlp net = make_net();
  const Tensor value = torch::nn::functional::cross_entropy(net->forward(x), y);
  value.backward();
  loss = value.item<double>();
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : net->parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

void expect_close(const std::vector<Tensor>& parameters,
                  const std::vector<Tensor>& expected) {
  for (size_t p = 0; p < expected.size(); ++p) {
    ASSERT_TRUE(parameters[p].grad().defined()) << p;
    EXPECT_TRUE(
        torch::allclose(parameters[p].grad(), expected[p], 1e-10, 1e-12))
        << p;
  }
}

TEST(WeightedLoss, GivesTheMeanOverUnitsInOneProcess) {
  // Twelve ignored targets of 13 leave shards of 3 without one that counts.
  for (const int64_t ignored : {0, 5, 12}) {
    const Tensor x = inputs(13), y = targets(13, ignored);
    double loss = 0;
    const auto expected = plain_gradients(x, y, loss);
    for (const int64_t shards : {1, 2, 4, 5}) {
      Mlp net = make_net();
      const DataParallel model(net, slices(shards > 1 ? 2 : 1),
                               DataParallelOptions().shards(shards));
      const StepResult result = model->train_step(x, y, loss_of);
      EXPECT_NEAR(result.loss, loss, 1e-12);
      EXPECT_EQ(result.weight, static_cast<double>(13 - ignored));
      EXPECT_EQ(result.samples, 13);
      expect_close(net->parameters(), expected);
    }
  }
}

TEST(WeightedLoss, HasTheBitsOfAPlainMeanIfTheWeightsAreTheSamples) {
  const auto train = [](bool states_weight) {
    Mlp net = make_net();
    const DataParallel model(net, slices(3));
    const auto optimizer = optim::sgd(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = inputs(13), y = targets(13, 0);
      if (states_weight) {
        model->train_step(x, y, loss_of, *optimizer);
      } else {
        model->train_step(x, y, testing_nets::cross_entropy, *optimizer);
      }
    }
    return digest_of(*net);
  };
  EXPECT_EQ(train(true), train(false));
}

size_t train_ranks(int ranks, int64_t shards, double clip,
                   const std::string& backend, bool ddp) {
  size_t digest = 0;
  const Tensor x = inputs(16), y = targets(16, 5);
  const auto rank_task = [&](const ProcessGroup& world) {
    Mlp net = make_net();
    const auto optimizer = optim::adamw(net->parameters(), 1e-2);
    const auto options = TrainStepOptions().clip_grad_norm(clip);
    const int64_t part = 16 / world.size();
    const Tensor own_x = x.narrow(0, world.rank() * part, part);
    const Tensor own_y = y.narrow(0, world.rank() * part, part);
    const auto steps = [&](const auto& model) {
      for (int step = 0; step < 3; ++step) {
        model->train_step(own_x, own_y, loss_of, *optimizer, options);
      }
    };
    if (ddp) {
      steps(DistributedDataParallel(
          net, world,
          DistributedDataParallelOptions().shards(shards).intra_op_threads(1)));
    } else {
      steps(DataParallel(net, {slices(world.size())[world.rank()]},
                         DataParallelOptions()
                             .process_group(world)
                             .shards(shards)
                             .intra_op_threads(1)));
    }
    if (world.rank() == 0) digest = digest_of(*net);
  };
  if (ranks == 1) {
    rank_task(ProcessGroup());
  } else {
    spawn(ranks, rank_task, ProcessGroupOptions().backend(backend));
  }
  return digest;
}

TEST(WeightedLoss, HasTheSameBitsOnEveryNumberOfRanks) {
  for (const double clip : {0.0, 0.5}) {
    const size_t expected = train_ranks(1, 4, clip, "", false);
    for (const std::string backend : {"shm", "tcp"}) {
      for (const int ranks : {2, 4}) {
        for (const bool ddp : {false, true}) {
          EXPECT_EQ(train_ranks(ranks, 4, clip, backend, ddp), expected)
              << ranks << " ranks over " << backend << ", clip " << clip
              << (ddp ? ", ddp" : "");
        }
      }
    }
  }
}

TEST(WeightedLoss, GivesTheMeanOverTheUnitsOfSeveralCalls) {
  const Tensor x = inputs(12), y = targets(12, 5);
  double loss = 0;
  const auto expected = plain_gradients(x, y, loss);
  Mlp net = make_net();
  const DataParallel model(net, slices(2));
  const auto options = TrainStepOptions().total_weight(7);
  double sum = 0;
  // The first call has no target that counts.
  for (const int64_t begin : {0, 4, 8}) {
    sum += model
               ->train_step(x.narrow(0, begin, 4), y.narrow(0, begin, 4),
                            loss_of, options)
               .loss;
  }
  EXPECT_NEAR(sum, loss, 1e-12);
  expect_close(net->parameters(), expected);
  EXPECT_THROW(
      model->train_step(x, y, loss_of, TrainStepOptions().total_weight(6)),
      ParallelError);
}

TEST(WeightedLoss, GivesTheMeanOverTheUnitsOfCallsUnderNoSync) {
  const Tensor x = inputs(16), y = targets(16, 5);
  double loss = 0;
  const auto expected = plain_gradients(x, y, loss);
  for (const std::string backend : {"shm", "tcp"}) {
    spawn(
        2,
        [&](const ProcessGroup& world) {
          Mlp net = make_net();
          const DistributedDataParallel model(net, world);
          const auto part = [&](const Tensor& of, int64_t call) {
            return of.narrow(0, world.rank() * 8 + call * 4, 4);
          };
          const auto options = TrainStepOptions().total_weight(11);
          {
            const auto local = model->no_sync();
            EXPECT_THROW(model->train_step(part(x, 0), part(y, 0), loss_of),
                         InvalidArgument);
            net->zero_grad();
            model->train_step(part(x, 0), part(y, 0), loss_of, options);
          }
          model->train_step(part(x, 1), part(y, 1), loss_of, options);
          expect_close(net->parameters(), expected);
        },
        ProcessGroupOptions().backend(backend));
  }
}

TEST(WeightedLoss, RefusesABatchWithoutUnitsUnlessToldToSkipIt) {
  for (const int ranks : {1, 2}) {
    const int64_t samples = 8 / ranks;
    const Tensor x = inputs(samples), y = targets(samples, samples);
    const Tensor trained = targets(samples, 1);
    const auto task = [&](const ProcessGroup& world) {
      Mlp net = make_net();
      const DataParallel model(
          net, {slices(world.size())[world.rank()]},
          DataParallelOptions().process_group(world).shards(2));
      const auto optimizer = optim::sgd(net->parameters(), 0.1);
      const std::string before = bytes_of(*net);
      try {
        model->train_step(x, y, loss_of, *optimizer);
        ADD_FAILURE() << "it was accepted";
      } catch (const ParallelError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kEmptyBatch);
      }
      const StepResult skipped =
          model->train_step(x, y, loss_of, *optimizer,
                            TrainStepOptions().empty_batch(EmptyBatch::kSkip));
      EXPECT_TRUE(skipped.is_empty);
      EXPECT_TRUE(skipped.is_finite);
      EXPECT_FALSE(skipped.updates());
      EXPECT_EQ(skipped.loss, 0);
      EXPECT_EQ(bytes_of(*net), before);
      // The next batch is trained on as if nothing had been.
      const StepResult next =
          model->train_step(x, trained, loss_of, *optimizer);
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

TEST(LossReduction, OfASumGivesTheGradientOfTheBatchsSum) {
  const Tensor x = inputs(13), y = targets(13, 5);
  Mlp plain = make_net();
  const Tensor expected_loss = sum_of(plain->forward(x), y);
  expected_loss.backward();
  std::vector<Tensor> expected;
  for (const Tensor& parameter : plain->parameters()) {
    expected.push_back(parameter.grad());
  }
  const auto options = TrainStepOptions().loss_reduction(LossReduction::kSum);
  for (const int shards : {1, 3}) {
    Mlp net = make_net();
    const DataParallel model(net, slices(shards));
    const StepResult result = model->train_step(x, y, sum_of, options);
    EXPECT_NEAR(result.loss, expected_loss.item<double>(), 1e-10);
    expect_close(net->parameters(), expected);
  }
}

}  // namespace
}  // namespace lockstep::weighted_loss_test
