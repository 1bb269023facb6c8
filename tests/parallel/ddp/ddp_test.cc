#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::ddp_test {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;

class Ddp : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, Ddp,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

constexpr int64_t kOfRank = 4;  // samples of a rank in a step
constexpr int64_t kSteps = 3;
// A small net, whose gradients are in one bucket, and one with weights of
// 320 kB, which are summed separately.
constexpr int64_t kSmall = 8, kLarge = 20'000;

/// Parameters after some steps of a plain torch optimizer.
std::vector<Tensor> trained(const ProcessGroup& world, const Options& options,
                            int64_t hidden = kSmall) {
  auto net = filled(std::make_shared<NetImpl>(hidden));
  auto model = DistributedDataParallel<NetImpl>(net, world, options);
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t first = (step * world.size() + world.rank()) * kOfRank;
    optimizer.zero_grad();
    loss_of(model->forward(inputs(first, kOfRank)), targets(first, kOfRank))
        .backward();
    optimizer.step();
  }
  return copies(model->parameters());
}

/// The same steps by DataParallel, with a shard for each rank.
std::vector<Tensor> trained_by_data_parallel(int shards,
                                             int64_t hidden = kSmall) {
  auto net = filled(std::make_shared<NetImpl>(hidden));
  const DataParallel model(
      net, tested::devices(1),
      DataParallelOptions().shards(shards).intra_op_threads(1));
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const int64_t first = step * shards * kOfRank;
    model->train_step(inputs(first, shards * kOfRank),
                      targets(first, shards * kOfRank), loss_of);
    optimizer.step();
  }
  return copies(model->parameters());
}

TEST_P(Ddp, GivesTheBitsOfDataParallelWithAsManyShards) {
  for (const int64_t hidden : {kSmall, kLarge}) {
    for (const int ranks : {1, 2, 4}) {
      const auto expected = trained_by_data_parallel(ranks, hidden);
      const double tolerance = ranks > 2 && !sums_along_tree() ? 1e-6 : 0;
      const auto task = [&](const ProcessGroup& world) {
        check_same(trained(world, Options(), hidden), expected, tolerance);
      };
      EXPECT_EQ(on_ranks(ranks, task), "")
          << ranks << " ranks, " << hidden << " hidden";
    }
  }
}

TEST_P(Ddp, GivesTheSameBitsHoweverGradientsAreBucketed) {
  const std::vector<Options> all{Options().bucket_cap_mb(0.00001),
                                 Options().gradient_as_bucket_view(false),
                                 Options().static_graph(true),
                                 Options().find_unused_parameters(true)};
  for (const int64_t hidden : {kSmall, kLarge}) {
    const auto expected = trained_by_data_parallel(2, hidden);
    run_on_ranks(2, [&](ProcessGroup world) {
      for (const Options& options : all) {
        check_same(trained(world, options, hidden), expected);
      }
    });
  }
}

TEST_P(Ddp, TakesRank0sParametersAndBuffers) {
  run_on_ranks(2, [](ProcessGroup world) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2),
                              torch::nn::BatchNorm1d(2));
    {
      const torch::NoGradGuard no_grad;
      for (auto& p : net->parameters()) {
        p.fill_(world.rank() + 1);
      }
      for (auto& b : net->buffers()) b.fill_(world.rank());
    }
    auto shell = std::make_shared<NetImpl>();
    shell->register_module("more", net);
    shell->to(home());
    DistributedDataParallel<NetImpl> model(shell, world);
    for (const auto& p : net->parameters()) {
      TORCH_CHECK(p.eq(1).all().item<bool>());
    }
    for (const auto& b : net->buffers()) {
      TORCH_CHECK(b.eq(0).all().item<bool>());
    }
  });
}

TEST_P(Ddp, KeepsGradientsOnTheirRankUnderNoSync) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    const int64_t rank = world.rank();
    {
      const auto no_sync = model->no_sync();
      loss_of(model(inputs(rank, 1)), targets(rank, 1)).backward();
    }
    check_same(gradients_of(*net), plain_gradients(rank, 1));
    // The synced backward averages what was there before it.
    loss_of(model(inputs(2 + rank, 1)), targets(2 + rank, 1)).backward();
    const auto expected = sum_of(plain_gradients(0, 2), plain_gradients(2, 2));
    check_same(gradients_of(*net), expected, 1e-6);
  });
}

TEST_P(Ddp, WeightsEachBackwardByItsOwnForwards) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(
        net, world, Options().average(GradientAverage::kSamples));
    const bool is_first = world.rank() == 0;
    const Tensor one =
        loss_of(model(inputs(is_first ? 0 : 5, is_first ? 5 : 2)),
                targets(is_first ? 0 : 5, is_first ? 5 : 2));
    // Another forward, of other sizes, before its backward,
    // and one that gets none.
    const Tensor two = loss_of(model(inputs(is_first ? 7 : 8, 1)),
                               targets(is_first ? 7 : 8, 1));
    {
      const auto no_sync = model->no_sync();
      model(inputs(0, 9));
    }
    one.backward();
    check_same(gradients_of(*net), plain_gradients(0, 7), 1e-6);
    net->zero_grad();
    two.backward();
    check_same(gradients_of(*net), plain_gradients(7, 2), 1e-6);
  });
}

TEST_P(Ddp, SumsTwoForwardsOfOneBackward) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    const int64_t r = world.rank();
    const Tensor one = loss_of(model(inputs(r, 1)), targets(r, 1));
    const Tensor two = loss_of(model(inputs(2 + r, 1)), targets(2 + r, 1));
    (one + two).backward();
    const auto expected = sum_of(plain_gradients(0, 2), plain_gradients(2, 2));
    check_same(gradients_of(*net), expected, 1e-6);
  });
}

TEST_P(Ddp, ReplacesTheExchangeByAHook) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    int64_t calls = 0;
    model->register_comm_hook(
        [&](const ProcessGroup& ranks, GradBucket& bucket) {
          ++calls;
          TORCH_CHECK(bucket.weight == 0.5);
          TORCH_CHECK(bucket.gradients.size() == 4);
          ranks.all_reduce(bucket.buffer, ReduceOp::MAX);
          bucket.buffer.fill_(7);
        });
    loss_of(model(inputs(world.rank(), 1)), targets(world.rank(), 1))
        .backward();
    TORCH_CHECK(calls == 1);
    for (const auto& gradient : gradients_of(*net)) {
      TORCH_CHECK(gradient.eq(7).all().item<bool>());
    }
  });
}

TEST_P(Ddp, CompressesOnRequest) {
  const auto train_with = [](const ProcessGroup& world, const CommHook& hook) {
    auto net = filled(std::make_shared<NetImpl>());
    // A bucket for each parameter.
    DistributedDataParallel<NetImpl> model(net, world,
                                           Options().bucket_cap_mb(0.00001));
    if (hook) model->register_comm_hook(hook);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int64_t step = 0; step < 5; ++step) {
      const int64_t first = 2 * step + world.rank();
      optimizer.zero_grad();
      loss_of(model(inputs(first, 1)), targets(first, 1)).backward();
      optimizer.step();
    }
    return copies(model->parameters());
  };
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto plain = train_with(world, nullptr);
    check_same(train_with(world, allreduce_hook), plain);
    // 11 and 8 bits of mantissa, five steps of 0.1.
    check_same(train_with(world, fp16_compress_hook), plain, 1e-3);
    check_same(train_with(world, bf16_compress_hook), plain, 1e-2);
    // A full-rank approximation loses nothing.
    const PowerSGD exact(PowerSGDOptions()
                             .matrix_approximation_rank(16)
                             .start_powerSGD_iter(2)
                             .min_compression_rate(0.01));
    check_same(train_with(world, exact), plain, 1e-4);
  });
}

// On one host, the ranks share an optimizer's state until there is a hook.
TEST_P(Ddp, TakesAHookAfterStepsOfAnOptimizerWithState) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto train_with = [&](bool has_hook) {
      auto net = filled(std::make_shared<NetImpl>());
      DistributedDataParallel<NetImpl> model(net, world);
      torch::optim::SGD optimizer(model->parameters(),
                                  torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int64_t step = 0; step < 4; ++step) {
        if (step == 2 && has_hook) {
          model->register_comm_hook(allreduce_hook);
        }
        const int64_t first = 2 * step + world.rank();
        model->train_step(inputs(first, 1), targets(first, 1), loss_of,
                          optimizer);
      }
      return copies(model->parameters());
    };
    check_same(train_with(true), train_with(false), 1e-5);
  });
}

TEST_P(Ddp, TakesRank0sBuffersAfterAStep) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = std::make_shared<testing_nets::NetImpl>();
    filled(std::shared_ptr<torch::nn::Module>(net));
    net->drop->eval();
    DistributedDataParallel<testing_nets::NetImpl> model(net, world);
    const Tensor x = torch::arange(2 * 3 * 16, torch::kFloat)
                         .add(1000 * world.rank())
                         .sin()
                         .view({2, 3, 4, 4})
                         .to(home());
    // Two forwards: the first graph must survive the second.
    const Tensor loss = model(x).sum() + model(x * 2).sum();
    loss.backward();
    for (const auto& buffer : model->named_buffers()) {
      const auto all = world.all_gather(buffer.value()).result();
      TORCH_CHECK(torch::equal(all[0], buffer.value()), buffer.key());
    }
    TORCH_CHECK(net->norm->num_batches_tracked.item<int64_t>() == 2);
  });
}

TEST_P(Ddp, WrapsTorchScript) {
  run_on_ranks(2, [](ProcessGroup world) {
    torch::jit::Module module("net");
    module.register_parameter(
        "weight", torch::ones({4, 1}, home()).requires_grad_(), false);
    module.define(
        "def forward(self, x):\n"
        "    return x.mm(self.weight)\n");
    DistributedDataParallel model(module, world);
    model->forward({inputs(world.rank(), 1)}).toTensor().sum().backward();
    check_same({model->parameters()[0].grad()},
               {inputs(0, 2).mean(0).view({4, 1})}, 1e-6);
  });
}

TEST(DdpOfOneRank, IsTheModuleItself) {
  auto net = filled(std::make_shared<NetImpl>());
  DistributedDataParallel<NetImpl> model(net, ProcessGroup());
  loss_of(model(inputs(0, 4)), targets(0, 4)).backward();
  check_same(gradients_of(*net), plain_gradients(0, 4));
}

TEST(DdpBuckets, FollowTheOrderOfArrivalOnce) {
  struct SwappedImpl : torch::nn::Module {
    SwappedImpl() {
      late = register_module("late", torch::nn::Linear(4, 4));
      early = register_module("early", torch::nn::Linear(4, 4));
    }
    // The layer registered last gets its gradient last.
    Tensor forward(Tensor x) { return late(torch::relu(early(x))); }
    torch::nn::Linear late{nullptr}, early{nullptr};
  };
  EXPECT_EQ(failure_of(
                2, "shm",
                [](ProcessGroup world) {
                  auto net = filled(std::make_shared<SwappedImpl>());
                  DistributedDataParallel<SwappedImpl> model(
                      net, world, Options().bucket_cap_mb(0.00001));
                  using Places = std::vector<std::vector<size_t>>;
                  const auto step = [&] {
                    net->zero_grad();
                    model(inputs(world.rank(), 1)).sum().backward();
                  };
                  TORCH_CHECK((model->buckets() == Places{{3}, {2}, {1}, {0}}));
                  step();
                  const auto first = gradients_of(*net);
                  const auto second = model->buckets();
                  TORCH_CHECK((second.back()[0] >= 2));
                  step();
                  check_same(gradients_of(*net), first);
                  TORCH_CHECK(model->buckets() == second);
                }),
            "");
}

}  // namespace
}  // namespace lockstep::ddp_test
