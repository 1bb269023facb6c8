// Replicas and ranks on one GPU train what one device trains.
#include <chrono>
#include <functional>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/exchange/partition.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::one_gpu_test {
namespace {

using testing_ddp::check_same;
using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;

constexpr int64_t kBatch = 12;
constexpr int64_t kSteps = 20;
const Device kGpu{c10::kCUDA, 0, 0};

std::shared_ptr<NetImpl> new_net() {
  auto net = filled(std::make_shared<NetImpl>(/*hidden=*/40'000));
  net->to(torch_device(kGpu));
  return net;
}

/// Trains on samples [first, first + count) of each batch.
template <class Model>
std::vector<Tensor> train(Model& model, NetImpl& net, int64_t first,
                          int64_t count) {
  torch::optim::SGD sgd(net.parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t begin = step * kBatch + first;
    model->train_step(inputs(begin, count), targets(begin, count), loss_of,
                      sgd);
  }
  return copies(net.parameters());
}

std::vector<Tensor> trained_on(const std::vector<Device>& devices,
                               int64_t shards, int threads = 0) {
  auto net = new_net();
  auto options = DataParallelOptions().shards(shards);
  if (threads > 0) options.intra_op_threads(threads);
  auto model = DataParallel(net, devices, options);
  return train(model, *net, 0, kBatch);
}

/// Trains in the user's own loop.
std::vector<Tensor> trained_in_loop(const std::vector<Device>& devices,
                                    int64_t shards) {
  auto net = new_net();
  auto model = DataParallel(net, devices, DataParallelOptions().shards(shards));
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t begin = step * kBatch;
    sgd.zero_grad();
    loss_of(model->forward(inputs(begin, kBatch)),
            targets(begin, kBatch).to(torch_device(kGpu)))
        .backward();
    sgd.step();
  }
  return copies(net->parameters());
}

class OneGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  }
};

// First, before another test makes the process deterministic.
TEST_F(OneGpu, MakesALoopOfDistributedDataParallelDeterministic) {
  const DistributedDataParallel model(new_net(), ProcessGroup());
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
}

TEST_F(OneGpu, GivesTwoReplicasTheBitsOfOne) {
  check_same(trained_on({kGpu, kGpu}, 2), trained_on({kGpu}, 2));
}

TEST_F(OneGpu, RunsTheBackwardOfAUsersLoop) {
  const auto expected = trained_in_loop({kGpu}, 2);
  check_same(trained_in_loop({kGpu, kGpu}, 2), expected);
  check_same(expected, trained_on({kGpu}, 2), 1e-5);
}

TEST_F(OneGpu, UpdatesInTheWorkersStreamWithSeveralThreads) {
  check_same(trained_on({kGpu}, 1, /*threads=*/4), trained_on({kGpu}, 1));
}

TEST_F(OneGpu, GivesRanksTheBitsOfOneDevice) {
  for (const char* backend : {"shm", "tcp"}) {
    for (const int ranks : {2, 3}) {
      const auto expected = trained_on({kGpu}, ranks);
      ProcessGroupOptions options;
      options.backend(backend);
      options.device_type(torch::kCUDA);
      options.timeout(std::chrono::seconds(60));
      spawn(
          ranks,
          [&](const ProcessGroup& world) {
            auto net = new_net();
            auto model = DistributedDataParallel(net, world);
            const int64_t count = kBatch / ranks;
            check_same(train(model, *net, world.rank() * count, count),
                       expected);
          },
          options);
    }
  }
}

TEST_F(OneGpu, GivesRanksWithAPartOfTheStateTheBitsOfOneDevice) {
  const auto expected = trained_on({kGpu}, 2);
  for (const auto stage : {ZeroStage::kOptimizerState, ZeroStage::kGradients}) {
    ProcessGroupOptions options;
    options.backend("tcp");
    options.device_type(torch::kCUDA);
    options.timeout(std::chrono::seconds(60));
    spawn(
        2,
        [&](const ProcessGroup& world) {
          auto net = new_net();
          auto model = DistributedDataParallel(
              net, world, DistributedDataParallelOptions().zero(stage));
          const int64_t count = kBatch / 2;
          check_same(train(model, *net, world.rank() * count, count), expected);
        },
        options);
  }
}

TEST_F(OneGpu, GivesEachRankAnEqualPartOfTheState) {
  const auto options = torch::device(torch::kCUDA);
  const Tensor weight = torch::zeros({512, 512}, options);
  const Tensor bias = torch::zeros({512}, options);
  ProcessGroupOptions group_options;
  group_options.backend("tcp").device_type(torch::kCUDA);
  spawn(
      2,
      [&](const ProcessGroup& world) {
        const Partition partition(world, {weight, bias, weight, bias});
        TORCH_CHECK(partition.is_cut(0) && partition.is_cut(2));
        TORCH_CHECK(partition.owns(0, 0) == (world.rank() == 0));
        TORCH_CHECK(partition.owns(2, 0) == (world.rank() == 1));
      },
      group_options);
}

TEST_F(OneGpu, LeavesTheCallersRandomNumbersAlone) {
  auto net = new_net();
  auto model = DataParallel(net, std::vector<Device>{kGpu});
  const auto draw = [] { return torch::rand({8}, torch::kCUDA); };
  torch::manual_seed(7);
  const Tensor first = draw();
  const Tensor second = draw();
  torch::manual_seed(7);
  check_same({draw()}, {first});
  train(model, *net, 0, kBatch);
  check_same({draw()}, {second});
}

}  // namespace
}  // namespace lockstep::one_gpu_test
