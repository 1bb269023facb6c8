// Tests what a .grad shares with others: memory, because autograd hands out
// views, and sums over the ranks.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/device/memory.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// As in every BERT, both parameters' gradients are views of one tensor.
struct PositionsImpl : torch::nn::Module {
  explicit PositionsImpl(int64_t size = 4) {
    position = register_parameter("position", torch::zeros({size}));
    type = register_parameter("type", torch::zeros({size}));
  }
  Tensor forward(Tensor x) {
    return x + (position.unsqueeze(0) + type.unsqueeze(0));
  }
  Tensor position, type;
};
using Positions = DistributedDataParallel<PositionsImpl>;

std::vector<Options> every_option() {
  return {Options(),
          Options().gradient_as_bucket_view(false),
          Options().static_graph(true),
          Options().static_graph(true).gradient_as_bucket_view(false),
          Options().find_unused_parameters(true),
          Options().average(GradientAverage::kSamples)};
}

class DdpSharedGradients : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, DdpSharedGradients,
                         testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

// LibTorch itself counts the second gradient twice when it adds, so that the
// sums here are computed from single ones.
TEST_P(DdpSharedGradients, AddUpToWhatEachBackwardGives) {
  for (const Options& options : every_option()) {
    run_on_ranks(2, [&](ProcessGroup world) {
      auto net = std::make_shared<PositionsImpl>();
      Positions model(net, world, options);
      const Tensor x = inputs(world.rank(), 1);
      const Tensor mean = inputs(0, 2).mean(0);
      for (int step = 1; step < 4; ++step) {
        (model(x) * x).sum().backward();
        check_same(gradients_of(*net), {mean * step, mean * step}, 1e-6);
      }
    });
  }
}

// Large enough to be summed where they lie, if that were their own memory.
TEST(DdpLargeSharedGradients, AddUpToWhatEachBackwardGives) {
  constexpr int64_t kSize = 100'000;
  const auto for_rank = [](int rank) {
    return (torch::arange(kSize) * 0.37F + rank).sin().unsqueeze(0);
  };
  for (const Options& options : every_option()) {
    const auto task = [&](ProcessGroup world) {
      const MemoryScope scope({c10::kCPU, world.rank(), 2});
      auto net = std::make_shared<PositionsImpl>(kSize);
      Positions model(net, world, options);
      const Tensor x = for_rank(world.rank());
      const Tensor mean = (for_rank(0)[0] + for_rank(1)[0]) / 2;
      for (int round = 0; round < 3; ++round) {
        net->zero_grad();
        for (int step = 1; step < 4; ++step) {
          (model(x) * x).sum().backward();
          check_same(gradients_of(*net), {mean * step, mean * step}, 1e-6);
        }
      }
    };
    EXPECT_EQ(failure_of(2, "shm", task), "");
  }
}

/// Two large parameters, of which the second lies with gaps in its memory.
struct GapsImpl : torch::nn::Module {
  GapsImpl() {
    dense = register_parameter("dense", torch::zeros({512, 256}));
    gaps =
        register_parameter("gaps", torch::zeros({512, 512}).slice(1, 0, 256));
    last = register_parameter("last", torch::zeros({256}));
  }
  Tensor forward(Tensor x) { return x.matmul(dense) + x.matmul(gaps) + last; }
  Tensor dense, gaps, last;
};

// Whether the gradient is summed separately was decided while the parameter had
// gaps.
TEST(DdpLargeSharedGradients, MayLoseTheGapsOfTheirParameters) {
  const auto for_rank = [](int rank) {
    return (torch::arange(512) * 0.37F + rank).sin().unsqueeze(0);
  };
  const auto task = [&](ProcessGroup world) {
    const MemoryScope scope({c10::kCPU, world.rank(), 2});
    auto net = std::make_shared<GapsImpl>();
    DistributedDataParallel<GapsImpl> model(net, world);
    const Tensor x = for_rank(world.rank());
    const Tensor mean = ((for_rank(0) + for_rank(1)) / 2)[0];
    const Tensor weight = mean.unsqueeze(1).expand({512, 256});
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      model(x).sum().backward();
      check_same(gradients_of(*net), {weight, weight, torch::ones({256})},
                 1e-6);
      if (step == 1) net->gaps.set_data(net->gaps.detach().contiguous());
    }
  };
  EXPECT_EQ(failure_of(2, "shm", task), "");
}

TEST_P(DdpSharedGradients, AddUpUnderNoSync) {
  for (const Options& options : every_option()) {
    run_on_ranks(2, [&](ProcessGroup world) {
      auto net = std::make_shared<PositionsImpl>();
      Positions model(net, world, options);
      const Tensor x = inputs(world.rank(), 1);
      {
        const auto no_sync = model->no_sync();
        for (int step = 1; step < 4; ++step) {
          (model(x) * x).sum().backward();
          const Tensor sum = x[0] * step;
          check_same(gradients_of(*net), {sum, sum}, 1e-6);
        }
      }
      (model(x) * x).sum().backward();
      const Tensor sum = inputs(0, 2).mean(0) * 4;
      check_same(gradients_of(*net), {sum, sum}, 1e-6);
    });
  }
}

TEST_P(DdpSharedGradients, LeaveTheCallersTensorsAlone) {
  for (const Options& options : every_option()) {
    run_on_ranks(2, [&](ProcessGroup world) {
      auto net = std::make_shared<PositionsImpl>();
      Positions model(net, world, options);
      const Tensor zero = torch::zeros({1, 4});
      const Tensor given = inputs(world.rank(), 1);
      const Tensor before = given.clone();
      for (int step = 1; step < 3; ++step) {
        // The gradient of `position` is a view of `given`.
        model(zero).backward(given);
        check_same({given}, {before});
        const Tensor sum = inputs(0, 2).mean(0) * step;
        check_same(gradients_of(*net), {sum, sum}, 1e-6);
      }
      {
        const auto no_sync = model->no_sync();
        net->zero_grad();
        model(zero).backward(given);
        model(zero).backward(given);
        check_same({given}, {before});
      }
    });
  }
}

/// The gradient arrives at a view of what the caller holds, on its own.
struct OffsetImpl : torch::nn::Module {
  OffsetImpl() { offset = register_parameter("offset", torch::zeros({4})); }
  Tensor forward(Tensor x) { return x + offset.unsqueeze(0); }
  Tensor offset;
};

TEST_P(DdpSharedGradients, OfOneParameterAndAResidualBranchAreApart) {
  for (const Options& options : every_option()) {
    run_on_ranks(2, [&](ProcessGroup world) {
      auto net = std::make_shared<OffsetImpl>();
      DistributedDataParallel<OffsetImpl> model(net, world, options);
      const Tensor given = inputs(world.rank(), 1);
      for (int step = 1; step < 3; ++step) {
        Tensor x = torch::zeros({1, 4}).requires_grad_();
        model(x).backward(given);
        check_same({given, x.grad()},
                   {inputs(world.rank(), 1), inputs(world.rank(), 1)});
        check_same(gradients_of(*net), {inputs(0, 2).mean(0) * step}, 1e-6);
      }
    });
  }
}

TEST_P(DdpSharedGradients, AGradInMemoryOfTheUsersStaysThere) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = std::make_shared<PositionsImpl>();
    Positions model(net, world, Options().gradient_as_bucket_view(false));
    Tensor flat = torch::zeros({2, 4});
    net->position.mutable_grad() = flat[0];
    net->type.mutable_grad() = flat[1];
    const Tensor x = inputs(world.rank(), 1);
    (model(x) * x).sum().backward();
    check_same({flat}, {inputs(0, 2).mean(0, true).expand({2, 4}).contiguous()},
               1e-6);
  });
}

// Autograd makes them in memory that the ranks share, from the second step on.
// The next step then makes others, so what a caller kept of one stays.
TEST(DdpLargeGradients, AreSummedWhereTheyLie) {
  constexpr int64_t kHidden = 30'000;
  constexpr int64_t kSamples = 7;
  const auto for_rank = [&](int rank, int step) {
    auto net = filled(std::make_shared<NetImpl>(kHidden));
    const int64_t first = (2 * step + rank) * kSamples;
    loss_of(net->forward(inputs(first, kSamples)), targets(first, kSamples))
        .backward();
    return gradients_of(*net);
  };
  const auto task = [&](ProcessGroup world) {
    // As a slice, so that its gradients are made in its own memory.
    const MemoryScope scope({c10::kCPU, world.rank(), 2});
    auto net = filled(std::make_shared<NetImpl>(kHidden));
    DistributedDataParallel<NetImpl> model(net, world);
    Tensor earlier, copy_of_earlier;
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      const int64_t first = (2 * step + world.rank()) * kSamples;
      loss_of(model(inputs(first, kSamples)), targets(first, kSamples))
          .backward();
      const auto expected = for_rank(0, step), others = for_rank(1, step);
      for (size_t p = 0; p < expected.size(); ++p) {
        expected[p].mul_(0.5).add_(others[p] * 0.5);
      }
      check_same(gradients_of(*net), expected);
      if (step > 1) check_same({earlier}, {copy_of_earlier});
      if (step > 0) {
        earlier = net->first->weight.grad();
        copy_of_earlier = earlier.clone();
      }
    }
  };
  EXPECT_EQ(failure_of(2, "shm", task), "");
}

}  // namespace
}  // namespace lockstep
