// The checks of the first step over ranks, which have one outcome.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/first_step_cases.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::first_step_test {
namespace {

/// The errors of two ranks.
std::vector<std::string> errors_of_ranks(
    const std::string& backend,
    const std::function<void(const ProcessGroup&)>& act) {
  std::vector<std::string> texts(2);
  spawn(
      2,
      [&](const ProcessGroup& world) {
        try {
          act(world);
        } catch (const ParallelError& error) {
          texts[static_cast<size_t>(world.rank())] = error.what();
        }
      },
      ProcessGroupOptions().backend(backend));
  return texts;
}

class FirstStepOfRanks : public testing::TestWithParam<const char*> {};

TEST_P(FirstStepOfRanks, IsRefusedByAllWithOneError) {
  const Tensor x = images(), y = uneven_targets();
  const auto texts =
      errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
        Tied net;
        // Only rank 1's replica is another network.
        const DistributedDataParallel<TiedImpl> model(
            net.ptr(),
            [&]() -> std::shared_ptr<TiedImpl> {
              const auto made = std::make_shared<TiedImpl>();
              if (world.rank() == 1) {
                made->decoder->weight =
                    made->named_parameters()["decoder.weight"];
              }
              return made;
            },
            world);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        for (int attempt = 0; attempt < 2; ++attempt) {
          const std::string before = bytes_of(*net);
          try {
            model->train_step(x.narrow(0, world.rank() * 6, 6),
                              x.narrow(0, world.rank() * 6, 6), mean_square,
                              sgd);
            ADD_FAILURE() << "rank " << world.rank() << " was not told";
          } catch (const ParallelError&) {
            EXPECT_TRUE(bytes_of(*net) == before);
            if (attempt == 1) throw;
          }
        }
      });
  EXPECT_PRED2(contains, texts[0], "[replica-differs]");
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_P(FirstStepOfRanks, RefusesLossesThatAreNoMeans) {
  const Tensor x = images(), y = uneven_targets();
  for (const LossCase& each : refused_losses()) {
    for (const bool ddp : {false, true}) {
      const auto texts =
          errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
            Mlp net;
            torch::optim::SGD sgd(net->parameters(), 0.1);
            const auto step = [&](const auto& model) {
              model->train_step(x.narrow(0, world.rank() * 6, 6),
                                y.narrow(0, world.rank() * 6, 6), each.loss,
                                sgd);
            };
            if (ddp) {
              step(DistributedDataParallel(net, world));
            } else {
              step(OverRanks(net, {slices(2)[world.rank()]},
                             DataParallelOptions().process_group(world)));
            }
          });
      EXPECT_PRED2(contains, texts[0], each.advice);
      EXPECT_EQ(texts[0], texts[1]);
    }
  }
}

/// A mean over tokens, of which those of class 0 are padding.
Tensor token_loss(const Tensor& output, const Tensor& target) {
  return ignoring(output.reshape({-1, output.size(-1)}), target.reshape({-1}));
}

// On each rank all texts have the same length, and so the loss is a mean.
TEST_P(FirstStepOfRanks, ComparesTheLossesOfDifferentRanks) {
  torch::manual_seed(3);
  const Tensor x = torch::randn({8, 3, 6});
  const Tensor full = torch::randint(1, 4, {4, 3});
  Tensor padded = torch::randint(1, 4, {4, 3});
  padded.narrow(1, 1, 2).fill_(0);
  const Tensor y = torch::cat({full, padded});
  const auto texts =
      errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
        Mlp net;
        const DistributedDataParallel model(net, world);
        model->train_step(x.narrow(0, world.rank() * 4, 4),
                          y.narrow(0, world.rank() * 4, 4), token_loss);
      });
  EXPECT_PRED2(contains, texts[0], "[bad-loss]");
  EXPECT_PRED2(contains, texts[0], "ranks' losses");
  EXPECT_EQ(texts[0], texts[1]);
}

// The backward that ends no_sync() sees no loss function.
TEST_P(FirstStepOfRanks, ChecksTheLossOfAStepUnderNoSync) {
  const auto texts =
      errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
        Mlp net;
        const DistributedDataParallel model(net, world);
        const auto no_sync = model->no_sync();
        model->train_step(images(), classes(), contrastive);
      });
  EXPECT_PRED2(contains, texts[0], "[bad-loss]");
  EXPECT_PRED2(contains, texts[1], "[bad-loss]");
}

// As the first call, before any step: it is no collective call.
TEST_P(FirstStepOfRanks, ComparesReplicasInAnEvaluation) {
  const Tensor x = images();
  const auto texts =
      errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
        const auto net = std::make_shared<ScaledImpl>();
        net->scale = 3;
        const OverRanks<ScaledImpl> model(
            net, [] { return std::make_shared<ScaledImpl>(); }, slices(2),
            DataParallelOptions().process_group(world));
        if (world.rank() == 1) return;
        const torch::NoGradGuard no_grad;
        model->forward(x);
      });
  EXPECT_PRED2(contains, texts[0], "[replica-differs]");
}

TEST_P(FirstStepOfRanks, FindsLayersThatTheForwardOfDdpRegisters) {
  const auto texts =
      errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
        const DistributedDataParallel<LazyImpl> model(
            std::make_shared<LazyImpl>(), world);
        model->forward(images());
      });
  EXPECT_PRED2(contains, texts[0], "[module-changed]");
  EXPECT_PRED2(contains, texts[0], "'later.weight'");
}

TEST_P(FirstStepOfRanks, IsNotMadeForADdpLoopOfOnesOwn) {
  // Its forward() is the module's own.
  const Tensor x = images();
  const auto texts =
      errors_of_ranks(GetParam(), [&](const ProcessGroup& world) {
        const auto net = std::make_shared<SharedWeightImpl>();
        const DistributedDataParallel<SharedWeightImpl> model(
            net, [] { return std::make_shared<SharedWeightImpl>(); }, world,
            DistributedDataParallelOptions().find_unused_parameters(true));
        mean_square(model->forward(x), x).backward();
      });
  EXPECT_EQ(texts, std::vector<std::string>(2));
}

INSTANTIATE_TEST_SUITE_P(Backends, FirstStepOfRanks,
                         testing::Values("shm", "tcp"));

}  // namespace
}  // namespace lockstep::first_step_test
