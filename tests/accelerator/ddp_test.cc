// DistributedDataParallel on the simulated accelerator has the bits of ranks on
// the CPU and of DataParallel on slices.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/accelerator/ddp_ranks.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/stream.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::sim {
namespace ddp_test {
namespace {

using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Options = DistributedDataParallelOptions;

constexpr int64_t kBatch = 12;
constexpr int64_t kSteps = 4;

/// A convolution, BatchNorm and dropout.
std::shared_ptr<testing_nets::NetImpl> conv_net(const torch::Device& home) {
  auto net = std::make_shared<testing_nets::NetImpl>();
  filled(std::shared_ptr<torch::nn::Module>(net));
  net->to(home);
  return net;
}

Tensor images(int64_t first, int64_t count) {
  return torch::arange(first * 48, (first + count) * 48, torch::kFloat)
      .mul(0.61)
      .sin()
      .view({count, 3, 4, 4});
}

template <class Net>
Tensors state_of(const Net& net) {
  Tensors state = copies(net.parameters());
  for (const Tensor& buffer : copies(net.buffers())) state.push_back(buffer);
  return state;
}

class DdpOnSim : public testing::TestWithParam<const char*> {
 protected:
  static std::string backend() { return GetParam(); }
  static bool sums_along_tree() { return backend() != "simccl"; }

  /// Expects that each rank has `expected`.
  static void expect_on_all(int ranks, const RankTask& task,
                            const Tensors& expected, double tolerance = 0) {
    const RankResults results = results_on_sim(ranks, backend(), task);
    for (const Tensors& of_rank : results) {
      expect_same_tensors(of_rank, expected, tolerance,
                          std::to_string(ranks) + " ranks");
    }
  }
  /// Expects that each rank has the same as on the CPU.
  static void expect_as_on_cpu(int ranks, const RankTask& task,
                               double tolerance = 0) {
    const RankResults expected = results_on_cpu(ranks, task);
    const RankResults results = results_on_sim(ranks, backend(), task);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      expect_same_tensors(results[rank], expected[rank], tolerance,
                          "rank " + std::to_string(rank));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, DdpOnSim,
                         testing::Values("simccl", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

// Steps of the engine.

template <class Model, class Net, class Inputs>
Tensors driven(Model& model, Net& net, const Inputs& inputs_from, int64_t first,
               int64_t count) {
  torch::optim::SGD sgd(net.parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t begin = step * kBatch + first;
    model->train_step(inputs_from(begin, count), targets(begin, count), loss_of,
                      sgd);
  }
  return state_of(net);
}

template <class MakeNet, class Inputs>
Tensors driven_on_slices(const MakeNet& make_net, const Inputs& inputs_from,
                         int64_t shards) {
  auto net = make_net(torch::Device(torch::kCPU));
  DataParallel model(
      net, testing_nets::slices(1),
      DataParallelOptions().shards(shards).intra_op_threads(1).seed(5));
  return driven(model, *net, inputs_from, 0, kBatch);
}

template <class MakeNet, class Inputs>
RankTask driven_on_ranks(const MakeNet& make_net, const Inputs& inputs_from,
                         int64_t shards = 0) {
  return [=](const ProcessGroup& world, const torch::Device& home) {
    auto net = make_net(home);
    DistributedDataParallel model(
        net, world, Options().intra_op_threads(1).seed(5).shards(shards));
    const int64_t count = kBatch / world.size();
    return driven(model, *net, inputs_from, world.rank() * count, count);
  };
}

TEST_P(DdpOnSim, StepsHaveTheBitsOfSlices) {
  for (const int ranks : {1, 2, 3, 4}) {
    expect_on_all(ranks, driven_on_ranks(conv_net, images),
                  driven_on_slices(conv_net, images, ranks));
  }
}

TEST_P(DdpOnSim, StepsWithLargeGradientsHaveTheBitsOfSlices) {
  const auto make_net = [](const torch::Device& home) { return net_on(home); };
  for (const int ranks : {1, 2, 3, 4}) {
    expect_on_all(ranks, driven_on_ranks(make_net, inputs),
                  driven_on_slices(make_net, inputs, ranks));
  }
}

TEST_P(DdpOnSim, StepsWithSeveralShardsOnARankHaveTheBitsOfSlices) {
  const auto make_net = [](const torch::Device& home) { return net_on(home); };
  // 3 shards on a rank are not a node of the tree, so their sums are exchanged
  // in another way.
  for (const int64_t shards : {4, 6}) {
    expect_on_all(2, driven_on_ranks(make_net, inputs, shards),
                  driven_on_slices(make_net, inputs, shards));
    expect_on_all(2, driven_on_ranks(conv_net, images, shards),
                  driven_on_slices(conv_net, images, shards));
  }
}

TEST_P(DdpOnSim, StepsInBFloat16HaveTheBitsOfSlices) {
  const auto make_net = [](const torch::Device& home) {
    auto net = net_on(home, /*hidden=*/64);
    net->to(torch::kBFloat16);
    return net;
  };
  const auto inputs_from = [](int64_t first, int64_t count) {
    return inputs(first, count).to(torch::kBFloat16);
  };
  for (const int ranks : {2, 4}) {
    expect_on_all(ranks, driven_on_ranks(make_net, inputs_from),
                  driven_on_slices(make_net, inputs_from, ranks));
  }
}

/// Steps of AdamW. The ranks may share its state.
RankTask driven_with_adamw(ZeroStage stage, int64_t shards) {
  return [=](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    DistributedDataParallel model(
        net, world, Options().intra_op_threads(1).shards(shards).zero(stage));
    const auto adamw = optim::adamw(
        net->parameters(),
        optim::AdamWOptions(0.01).make_state([&](const Tensor& parameter) {
          return model->make_state(parameter);
        }));
    const int64_t count = kBatch / world.size();
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t first = step * kBatch + world.rank() * count;
      model->train_step(inputs(first, count), targets(first, count), loss_of,
                        *adamw, TrainStepOptions().clip_grad_norm(0.3));
    }
    Tensors result = copies(net->parameters());
    for (const auto& [name, tensor] : adamw->state_dict()) {
      result.push_back(model->whole_state(tensor).clone());
    }
    return result;
  };
}

TEST_P(DdpOnSim, StagesOfZeroHaveTheBitsOfASingleDevice) {
  for (const int ranks : {2, 3}) {
    const auto alone = driven_with_adamw(ZeroStage::kNone, ranks);
    const Tensors expected = results_on_sim(1, backend(), alone)[0];
    // The CPU's update works on blocks, with other rounding.
    expect_same_tensors(expected, results_on_cpu(1, alone)[0], 1e-5, "alone");
    for (const auto stage : {ZeroStage::kNone, ZeroStage::kOptimizerState,
                             ZeroStage::kGradients}) {
      expect_on_all(ranks, driven_with_adamw(stage, ranks), expected);
    }
  }
}

TEST_P(DdpOnSim, AccumulatedStepsHaveTheBitsOfRanksOnTheCpu) {
  const auto task = [](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    DistributedDataParallel model(net, world, Options().intra_op_threads(1));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (int64_t step = 0; step < 2 * kSteps; ++step) {
      const int64_t first = step * kBatch + world.rank() * 3;
      if (step % 2 == 0) {
        const auto no_sync = model->no_sync();
        model->train_step(inputs(first, 3), targets(first, 3), loss_of);
      } else {
        model->train_step(inputs(first, 3), targets(first, 3), loss_of, sgd);
      }
    }
    return copies(net->parameters());
  };
  for (const int ranks : {2, 3}) expect_as_on_cpu(ranks, task);
}

// Loops of the user. Their backward runs in LibTorch's threads of the devices.

/// Trains in a loop with `options`.
RankTask looped(const Options& options, int64_t hidden = kLargeHidden) {
  return [=](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home, hidden);
    DistributedDataParallel<NetImpl> model(net, world, options);
    torch::optim::SGD sgd(model->parameters(),
                          torch::optim::SGDOptions(0.1).momentum(0.9));
    const int64_t count = kBatch / world.size();
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t first = step * kBatch + world.rank() * count;
      sgd.zero_grad();
      loss_of(model->forward(inputs(first, count).to(home)),
              targets(first, count).to(home))
          .backward();
      sgd.step();
    }
    return copies(net->parameters());
  };
}

/// The loop of DataParallel, which has the bits of ranks.
Tensors looped_on_slices(int64_t hidden, int64_t shards) {
  auto net = net_on(torch::Device(torch::kCPU), hidden);
  DataParallel model(net, testing_nets::slices(1),
                     DataParallelOptions().shards(shards).intra_op_threads(1));
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t first = step * kBatch;
    model->train_step(inputs(first, kBatch), targets(first, kBatch), loss_of);
    sgd.step();
    sgd.zero_grad();
  }
  return copies(net->parameters());
}

TEST_P(DdpOnSim, LoopsHaveTheBitsOfSlices) {
  for (const int64_t hidden : {int64_t{8}, kLargeHidden}) {
    for (const int ranks : {1, 2, 4}) {
      const double tolerance = ranks > 2 && !sums_along_tree() ? 1e-6 : 0;
      expect_on_all(ranks, looped(Options(), hidden),
                    looped_on_slices(hidden, ranks), tolerance);
    }
  }
}

TEST_P(DdpOnSim, LoopsHaveTheSameBitsHoweverGradientsAreBucketed) {
  const auto expected = looped_on_slices(kLargeHidden, 2);
  expect_on_all(2, looped(Options().bucket_cap_mb(0.00001)), expected);
  expect_on_all(2, looped(Options().gradient_as_bucket_view(false)), expected);
  expect_on_all(2, looped(Options().static_graph(true)), expected);
  expect_on_all(2, looped(Options().find_unused_parameters(true)), expected);
}

TEST_P(DdpOnSim, LoopsOfThreeRanksHaveTheBitsOfRanksOnTheCpu) {
  for (const auto average : {GradientAverage::kRanks, GradientAverage::kSamples,
                             GradientAverage::kNone}) {
    expect_as_on_cpu(3, looped(Options().average(average)),
                     sums_along_tree() ? 0 : 1e-5);
  }
}

TEST_P(DdpOnSim, LoopsInAStreamOfTheUserHaveTheBitsOfSlices) {
  const auto in_stream = [](const ProcessGroup& world,
                            const torch::Device& home) {
    const c10::StreamGuard guard(new_stream(world.rank()));
    Tensors result = looped(Options())(world, home);
    for (Tensor& tensor : result) tensor = tensor.cpu();
    return result;
  };
  expect_on_all(2, in_stream, looped_on_slices(kLargeHidden, 2));
}

TEST_P(DdpOnSim, StepsAndLoopsTakeTurns) {
  const auto task = [](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    DistributedDataParallel<NetImpl> model(net, world,
                                           Options().intra_op_threads(1));
    torch::optim::SGD sgd(model->parameters(),
                          torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int64_t step = 0; step < 2 * kSteps; ++step) {
      const int64_t first = step * kBatch + world.rank() * 3;
      if (step % 2 == 0) {
        model->train_step(inputs(first, 3), targets(first, 3), loss_of, sgd);
        continue;
      }
      sgd.zero_grad();
      loss_of(model->forward(inputs(first, 3).to(home)),
              targets(first, 3).to(home))
          .backward();
      sgd.step();
      sgd.zero_grad();
    }
    return copies(net->parameters());
  };
  expect_as_on_cpu(2, task);
}

TEST_P(DdpOnSim, AccumulatesUnderNoSync) {
  for (const auto average :
       {GradientAverage::kRanks, GradientAverage::kSamples}) {
    const auto task = [average](const ProcessGroup& world,
                                const torch::Device& home) {
      auto net = net_on(home);
      DistributedDataParallel<NetImpl> model(net, world,
                                             Options().average(average));
      torch::optim::SGD sgd(model->parameters(), 0.1);
      for (int64_t step = 0; step < kSteps; ++step) {
        sgd.zero_grad();
        for (int64_t part = 0; part < 3; ++part) {
          const int64_t first = (step * 3 + part) * kBatch + world.rank() * 4;
          const auto backward = [&] {
            loss_of(model->forward(inputs(first, 4).to(home)),
                    targets(first, 4).to(home))
                .backward();
          };
          if (part < 2) {
            const auto no_sync = model->no_sync();
            backward();
          } else {
            backward();
          }
        }
        sgd.step();
      }
      return copies(net->parameters());
    };
    expect_as_on_cpu(2, task);
  }
}

TEST_P(DdpOnSim, RanksHoldTheSameMemory) {
  install_collectives();
  const auto task = driven_on_ranks(
      [](const torch::Device& home) { return net_on(home); }, inputs);
  const auto loop = looped(Options());
  const int ranks = 4;
  for (const RankTask& each : {RankTask(task), RankTask(loop)}) {
    results_on_sim(ranks, backend(), each);  // makes what is kept
    reset_peaks();
    std::vector<int64_t> before;
    for (int i = 0; i < ranks; ++i) before.push_back(memory_use(i).bytes);
    results_on_sim(ranks, backend(), each);
    std::vector<int64_t> peaks;
    for (int i = 0; i < ranks; ++i) {
      peaks.push_back(memory_use(i).peak_bytes -
                      before[static_cast<size_t>(i)]);
    }
    const auto [least, most] = std::minmax_element(peaks.begin(), peaks.end());
    EXPECT_LE(static_cast<double>(*most), 1.05 * static_cast<double>(*least))
        << peaks[0] << " " << peaks[1] << " " << peaks[2] << " " << peaks[3];
  }
}

}  // namespace
}  // namespace ddp_test
}  // namespace lockstep::sim
