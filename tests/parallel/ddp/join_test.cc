#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;

class Join : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, Join,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

/// Rank r makes steps_of[r] steps of one sample each; what one process would
/// have computed is the expected result.
void train_unevenly(const ProcessGroup& world,
                    const std::vector<int64_t>& steps_of,
                    const Options& options, const JoinOptions& join) {
  auto net = filled(std::make_shared<NetImpl>());
  DistributedDataParallel<NetImpl> model(net, world, options);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto sample = [&](int64_t step, int64_t rank) {
    return step * world.size() + rank;
  };
  const auto own = steps_of[static_cast<size_t>(world.rank())];
  model->join(
      [&] {
        for (int64_t step = 0; step < own; ++step) {
          const int64_t at = sample(step, world.rank());
          optimizer.zero_grad();
          loss_of(model(inputs(at, 1)), targets(at, 1)).backward();
          optimizer.step();
        }
      },
      join);

  auto plain = filled(std::make_shared<NetImpl>());
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
  const bool by_active = options.average() == GradientAverage::kSamples ||
                         !join.divide_by_initial_world_size();
  const int64_t most = *std::max_element(steps_of.begin(), steps_of.end());
  for (int64_t step = 0; step < most; ++step) {
    plain_optimizer.zero_grad();
    std::vector<Tensor> losses;
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      if (step >= steps_of[static_cast<size_t>(rank)]) continue;
      const int64_t at = sample(step, rank);
      losses.push_back(loss_of(plain->forward(inputs(at, 1)), targets(at, 1)));
    }
    const auto active = static_cast<double>(losses.size());
    (torch::stack(losses).sum() / (by_active ? active : world.size()))
        .backward();
    plain_optimizer.step();
  }
  check_same(copies(model->parameters()), copies(plain->parameters()), 1e-5);
  // The ranks agree to the bit.
  for (const Tensor& parameter : model->parameters()) {
    for (const Tensor& other : world.all_gather(parameter.detach()).result()) {
      TORCH_CHECK(torch::equal(other, parameter));
    }
  }
}

TEST_P(Join, RanksWithoutInputsAnswerTheOthers) {
  run_on_ranks(2, [](ProcessGroup world) {
    train_unevenly(world, {6, 3}, {}, {});
    train_unevenly(world, {2, 5}, {}, {});
    train_unevenly(world, {0, 2}, {}, {});
    train_unevenly(world, {3, 3}, {}, {});
  });
}

TEST_P(Join, CountsBackwardsAndNotForwards) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    const int64_t steps = world.rank() == 0 ? 1 : 3;
    model->join([&] {
      for (int64_t i = 0; i < steps; ++i) {
        model(inputs(0, 1));  // a look, no backward
        {
          const auto no_sync = model->no_sync();
          model(inputs(0, 1)).sum().backward();
        }
        const Tensor both = model(inputs(0, 1)) + model(inputs(1, 1));
        both.sum().backward();
      }
    });
  });
}

TEST_P(Join, KeepsWhatWasAveragedWhileAllHadInputs) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    const int64_t r = world.rank();
    model->join([&] {
      loss_of(model(inputs(r, 1)), targets(r, 1)).backward();
      if (r == 1) return;
      // Added to it, without zero_grad().
      loss_of(model(inputs(2, 1)), targets(2, 1)).backward();
      auto expected = plain_gradients(2, 1);
      for (Tensor& gradient : expected) gradient /= 2;
      check_same(gradients_of(*net), sum_of(expected, plain_gradients(0, 2)),
                 1e-5);
    });
  });
}

TEST_P(Join, DividesByThoseThatHaveInputsOnRequest) {
  const auto by_active = JoinOptions().divide_by_initial_world_size(false);
  run_on_ranks(3, [&](ProcessGroup world) {
    train_unevenly(world, {1, 4, 2}, {}, by_active);
  });
}

TEST_P(Join, WorksWithEveryWayToAverageAndToBucket) {
  run_on_ranks(2, [&](ProcessGroup world) {
    train_unevenly(world, {1, 4}, Options().average(GradientAverage::kSamples),
                   {});
    train_unevenly(world, {4, 1}, Options().find_unused_parameters(true), {});
    train_unevenly(world, {4, 2}, Options().static_graph(true), {});
    train_unevenly(world, {1, 3},
                   Options().bucket_cap_mb(1e-5).gradient_as_bucket_view(false),
                   {});
  });
}

TEST_P(Join, TakesTheBuffersOfARankWithInputs) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = std::make_shared<testing_nets::NetImpl>();
    net->to(home());
    net->drop->eval();
    DistributedDataParallel<testing_nets::NetImpl> model(net, world);
    const int64_t steps = world.rank() == 0 ? 1 : 4;
    model->join([&] {
      for (int64_t i = 0; i < steps; ++i) {
        net->zero_grad();
        model(torch::ones({2, 3, 4, 4}, home())).sum().backward();
      }
    });
    const auto batches = net->norm->num_batches_tracked;
    TORCH_CHECK(batches.item<int64_t>() == 4);
  });
}

TEST_P(Join, CanEndTheEpochOnAllRanksInstead) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    const int64_t steps = world.rank() == 0 ? 2 : 5;
    int64_t done = 0;
    const auto step = [&] {
      net->zero_grad();
      loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
    };
    try {
      model->join(
          [&] {
            for (; done < steps; ++done) step();
          },
          JoinOptions().throw_on_early_termination(true));
      TORCH_CHECK(false, "no exception");
    } catch (const ParallelError& error) {
      TORCH_CHECK(error.code() == ErrorCode::kUnevenInputs &&
                      contains(error.what(), "rank 0"),
                  error.what());
    }
    TORCH_CHECK(done == 2, done);
    step();  // all is well
  });
}

TEST_P(Join, AnExceptionInTheStepsEndsTheOthersWaits) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    model->join([&] {
      loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
      if (world.rank() == 1) throw std::runtime_error("no more disk");
      loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
    });
  });
  EXPECT_PRED2(contains, failure, "no more disk");
}

}  // namespace
}  // namespace lockstep
