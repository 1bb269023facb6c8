// Ranks on one host share the parameters. What each of them does to its module
// has to come out as if every rank had its own, as over tcp it has.
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::sharing_test {
namespace {

using testing_ddp::check_same;
using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;

using Net = std::shared_ptr<NetImpl>;
using Model = OverRanks<NetImpl>;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

constexpr int64_t kBatch = 8;
constexpr double kTolerance = 1e-5;

Net make_net() { return filled(std::make_shared<NetImpl>()); }

Model wrap(const Net& net, const ProcessGroup& world) {
  return Model(net, {Device{}},
               DataParallelOptions().process_group(world).intra_op_threads(1));
}

Optimizer make_sgd(const Net& net) {
  return std::make_unique<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

// Batch number `step`: this rank's part of it, or the whole.
void train(const Model& model, const ProcessGroup& world, int step,
           torch::optim::Optimizer* optimizer,
           torch::Dtype dtype = torch::kFloat) {
  const int64_t own = kBatch / world.size();
  const int64_t first = step * kBatch + world.rank() * own;
  const Tensor x = inputs(first, own).to(dtype);
  if (optimizer) {
    model->train_step(x, targets(first, own), loss_of, *optimizer);
  } else {
    model->train_step(x, targets(first, own), loss_of);
  }
}

/// The same with plain LibTorch: the gradients of batch number `step`.
void plain_backward(const Net& net, int step,
                    torch::Dtype dtype = torch::kFloat) {
  net->zero_grad();
  loss_of(net->forward(inputs(step * kBatch, kBatch).to(dtype)),
          targets(step * kBatch, kBatch))
      .backward();
}

class Sharing : public testing_ddp::OnBackends {
 protected:
  static bool shares() { return std::string(GetParam()) == "shm"; }
};
INSTANTIATE_TEST_SUITE_P(Backends, Sharing, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

// The face of which the constructor makes no exchange.
TEST_P(Sharing, BeginsWhenItIsAskedFor) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = make_net();
    const DistributedDataParallel<NetImpl> model(net, world);
    const void* own = net->second->weight.data_ptr();
    model->share_parameters();
    const bool moved = net->second->weight.data_ptr() != own;
    TORCH_CHECK(moved == world.can_share_memory());
  });
}

using Change = std::function<void(const Net&)>;

/// Trains, changes the module on each rank, trains; against plain LibTorch.
void train_change_train(const ProcessGroup& world, const Change& change,
                        bool unshares) {
  const Net net = make_net();
  const Model model = wrap(net, world);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const Net alone = make_net();
  torch::optim::SGD plain(alone->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      world.barrier();  // the others compared what they have
      if (unshares) model->unshare_parameters();
      change(net);
      change(alone);
    }
    train(model, world, step, &sgd);
    plain_backward(alone, step);
    plain.step();
    check_same(net->parameters(), alone->parameters(), kTolerance);
  }
}

const Change& halve() {
  static const Change change = [](const Net& net) {
    torch::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.mul_(0.5);
  };
  return change;
}

TEST_P(Sharing, RefusesAChangeThatWouldComeOnceForEachRank) {
  const std::string failure = on_ranks(
      2, [](ProcessGroup world) { train_change_train(world, halve(), false); });
  if (!shares()) {
    EXPECT_EQ(failure, "");
    return;
  }
  EXPECT_PRED2(contains, failure, "'first.weight'");
  EXPECT_PRED2(contains, failure, "[parameter-written]");
}

TEST_P(Sharing, SeesAChangeThatMovesNoVersion) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    train_change_train(
        world, [](const Net& net) { net->second->weight.data().mul_(0.5); },
        false);
  });
  if (!shares()) {
    EXPECT_EQ(failure, "");
    return;
  }
  EXPECT_PRED2(contains, failure, "'second.weight'");
}

TEST_P(Sharing, AllowsAChangeOfParametersThatWereUnshared) {
  run_on_ranks(
      2, [](ProcessGroup world) { train_change_train(world, halve(), true); });
}

/// Statistics that are loaded and not trained: each rank normalises with them.
struct NormedImpl : torch::nn::Cloneable<NormedImpl> {
  NormedImpl() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    net = register_module("net", std::make_shared<NetImpl>());
  }
  Tensor forward(Tensor x) { return net->forward(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  std::shared_ptr<NetImpl> net;
};

TEST_P(Sharing, FollowsBuffersThatEveryRankLoaded) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto make = [] { return filled(std::make_shared<NormedImpl>()); };
    const auto net = make(), alone = make();
    const OverRanks<NormedImpl> model(
        net, {Device{}},
        DataParallelOptions().process_group(world).intra_op_threads(1));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::SGD plain(alone->parameters(), 0.1);
    const int64_t own = kBatch / world.size();
    for (int step = 0; step < 4; ++step) {
      for (const auto& each : {net, alone}) {
        each->norm->eval();
        each->norm->running_mean.set_data(torch::full({4}, 0.5 * step));
        torch::NoGradGuard no_grad;
        each->norm->running_var.mul_(1.5);
      }
      const int64_t first = step * kBatch + world.rank() * own;
      model->train_step(inputs(first, own), targets(first, own), loss_of, sgd);
      plain.zero_grad();
      loss_of(alone->forward(inputs(step * kBatch, kBatch)),
              targets(step * kBatch, kBatch))
          .backward();
      plain.step();
      check_same(net->parameters(), alone->parameters(), kTolerance);
      check_same(net->buffers(), alone->buffers(), kTolerance);
    }
  });
}

TEST(SharedParameters, RefusesParametersThatOneRankAloneLoaded) {
  const std::string failure =
      testing_ddp::failure_of(2, "shm", [](ProcessGroup world) {
        const Net net = make_net();
        const Model model = wrap(net, world);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        train(model, world, 0, &sgd);
        if (world.rank() == 1) {
          net->second->weight.set_data(torch::ones({3, 8}));
        }
        train(model, world, 1, &sgd);
      });
  EXPECT_PRED2(contains, failure, "'second.weight'");
  EXPECT_PRED2(contains, failure, "[parameters-differ]");
}

TEST(SharedParameters, RefusesRanksThatLoadedOtherValues) {
  const std::string failure =
      testing_ddp::failure_of(2, "shm", [](ProcessGroup world) {
        const Net net = make_net();
        const Model model = wrap(net, world);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        train(model, world, 0, &sgd);
        net->second->weight.set_data(torch::full({3, 8}, 1.0 * world.rank()));
        train(model, world, 1, &sgd);
      });
  EXPECT_PRED2(contains, failure, "'second.weight' of rank 1");
  EXPECT_PRED2(contains, failure, "[parameters-differ]");
}

TEST_P(Sharing, FollowsACast) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = make_net();
    const Model model = wrap(net, world);
    Optimizer sgd = make_sgd(net);
    train(model, world, 0, sgd.get());
    const Net alone = std::dynamic_pointer_cast<NetImpl>(net->clone());
    model->to(torch::kDouble);
    alone->to(torch::kDouble);
    sgd = make_sgd(net);
    torch::optim::SGD plain(alone->parameters(),
                            torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 1; step < 4; ++step) {
      train(model, world, step, sgd.get(), torch::kDouble);
      plain_backward(alone, step, torch::kDouble);
      plain.step();
      check_same(net->parameters(), alone->parameters(), 1e-12);
    }
  });
}

TEST_P(Sharing, EndsWithTheModel) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = make_net();
    {
      const Model model = wrap(net, world);
      const Optimizer sgd = make_sgd(net);
      train(model, world, 0, sgd.get());
    }
    world.barrier();
    const auto before = copies(net->parameters());
    world.barrier();
    halve()(net);
    world.barrier();
    for (size_t p = 0; p < before.size(); ++p) {
      TORCH_CHECK(torch::equal(net->parameters()[p], before[p] * 0.5));
    }
  });
}

// Neither the parameters nor the state of the optimizer are those of all ranks.
TEST_P(Sharing, EndsWithAStepWithoutAnOptimizer) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = make_net(), alone = make_net();
    const Model model = wrap(net, world);
    const Optimizer sgd = make_sgd(net), plain = make_sgd(alone);
    for (int step = 0; step < 4; ++step) {
      const bool is_own = step % 2 == 1;
      train(model, world, step, is_own ? nullptr : sgd.get());
      if (is_own) {
        sgd->step();
        sgd->zero_grad();
      }
      plain_backward(alone, step);
      plain->step();
      check_same(net->parameters(), alone->parameters(), kTolerance);
    }
  });
}

TEST_P(Sharing, EndsWithACommHook) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = make_net(), alone = make_net();
    const Model model = wrap(net, world);
    const Optimizer sgd = make_sgd(net), plain = make_sgd(alone);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) model->register_comm_hook(allreduce_hook);
      train(model, world, step, sgd.get());
      plain_backward(alone, step);
      plain->step();
      check_same(net->parameters(), alone->parameters(), kTolerance);
    }
  });
}

TEST(SharedTensor, IsKnownByItsViewsAndUnshared) {
  EXPECT_EQ(testing_ddp::failure_of(
                2, "shm",
                [](ProcessGroup world) {
                  const SharedMemory memory = world.shared_memory(4096);
                  Tensor tensor =
                      shared_tensor(memory, 0, 64, torch::empty({4, 5}).t());
                  TORCH_CHECK(tensor.sizes() == at::IntArrayRef({5, 4}));
                  TORCH_CHECK(tensor.strides() == at::IntArrayRef({1, 5}));
                  TORCH_CHECK(is_shared_tensor(tensor[2]));
                  TORCH_CHECK(!is_shared_tensor(torch::ones({2})));
                  TORCH_CHECK(!is_shared_tensor(Tensor()));
                  if (world.rank() == 0) tensor.fill_(3);
                  world.barrier();
                  unshare(tensor);
                  TORCH_CHECK(!is_shared_tensor(tensor));
                  TORCH_CHECK(tensor.eq(3).all().item<bool>());
                  TORCH_CHECK(tensor.strides() == at::IntArrayRef({1, 5}));
                }),
            "");
}

}  // namespace
}  // namespace lockstep::sharing_test
