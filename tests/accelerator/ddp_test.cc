// DistributedDataParallel on the simulated accelerator has the bits of ranks on
// the CPU and of DataParallel on slices. Its features are tested by the suites
// of tests/parallel/ddp, which this program runs as well.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/device/autocast.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/accelerator/ddp_ranks.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/stream.h"
#include "tests/base/temporary_folder.h"
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

  /// Expects that each rank has `expected`.
  static void expect_on_all(int ranks, const RankTask& task,
                            const Tensors& expected) {
    const RankResults results = results_on_sim(ranks, backend(), task);
    for (const Tensors& rank_tensors : results) {
      expect_same_tensors(rank_tensors, expected, 0,
                          std::to_string(ranks) + " ranks");
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, DdpOnSim,
                         testing::Values("simccl", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

/// Makes steps with batches in memory of the host.
template <class Model, class Net, class Inputs>
Tensors driven(Model& model, Net& net, const Inputs& inputs_from, int64_t first,
               int64_t count) {
  torch::optim::SGD sgd(net.parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t begin = step * kBatch + first;
    model->train_step(inputs_from(begin, count).cpu(),
                      targets(begin, count).cpu(), loss_of, sgd);
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

/// Trains in a loop of the user. Its backward runs in LibTorch's threads of
/// the devices.
Tensors looped(const ProcessGroup& world, const torch::Device& home) {
  auto net = net_on(home);
  DistributedDataParallel<NetImpl> model(net, world);
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
}

TEST_P(DdpOnSim, LoopsInAStreamOfTheUserHaveTheBitsOfRanksOnTheCpu) {
  const auto in_stream = [](const ProcessGroup& world,
                            const torch::Device& home) {
    const c10::StreamGuard guard(new_stream(world.rank()));
    return looped(world, home);
  };
  expect_on_all(2, in_stream, results_on_cpu(2, looped)[0]);
}

TEST_P(DdpOnSim, RanksHoldTheSameMemory) {
  const auto task = driven_on_ranks(
      [](const torch::Device& home) { return net_on(home); }, inputs);
  const int ranks = 4;
  for (const RankTask& each : {RankTask(task), RankTask(looped)}) {
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

TEST_P(DdpOnSim, AutocastHasTheBitsOfRanksOnTheCpu) {
  const auto task = [](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    DistributedDataParallel<NetImpl> model(net, world);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    Tensor output;
    for (int64_t step = 0; step < 3; ++step) {
      sgd.zero_grad();
      const int64_t first = step * kBatch + world.rank() * 4;
      Tensor loss;
      {
        const AutocastScope scope(home.type(), torch::kBFloat16);
        output = model->forward(inputs(first, 4).to(home));
        loss = loss_of(output, targets(first, 4).to(home));
      }
      loss.backward();
      sgd.step();
    }
    TORCH_CHECK(output.scalar_type() == torch::kBFloat16);
    return copies(net->parameters());
  };
  expect_on_all(2, task, results_on_cpu(2, task)[0]);
}

/// Trains some steps. Before the first one, loads the state of `from` if that
/// is not empty. After the last one, rank 0 saves it as `to`.
RankTask resumed(const std::string& from, const std::string& to,
                 int64_t first_step) {
  return [=](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    torch::optim::Adam adam(net->parameters(), 0.01);
    if (!from.empty()) {
      torch::load(net, from + ".net", home);
      torch::load(adam, from + ".adam", home);
    }
    DistributedDataParallel<NetImpl> model(net, world);
    const int64_t count = 8 / world.size();
    for (int64_t step = first_step; step < first_step + 2; ++step) {
      const int64_t first = step * 8 + world.rank() * count;
      adam.zero_grad();
      loss_of(model->forward(inputs(first, count).to(home)),
              targets(first, count).to(home))
          .backward();
      adam.step();
    }
    if (!to.empty() && world.rank() == 0) {
      torch::save(net, to + ".net");
      torch::save(adam, to + ".adam");
    }
    return copies(net->parameters());
  };
}

TEST_P(DdpOnSim, ACheckpointResumesOnAnotherWorldAndDevice) {
  const TemporaryFolder folder;
  const std::string sim_folder = folder.path("sim_folder");
  const std::string cpu_folder = folder.path("cpu_folder");
  results_on_sim(2, GetParam(), resumed("", sim_folder, 0));
  results_on_cpu(2, resumed("", cpu_folder, 0));
  const Tensors expected = results_on_cpu(2, resumed(cpu_folder, "", 2))[0];
  for (const Tensors& rank_tensors :
       results_on_cpu(2, resumed(sim_folder, "", 2))) {
    expect_same_tensors(rank_tensors, expected, 0, "from sim to the CPU");
  }
  for (const Tensors& rank_tensors :
       results_on_sim(2, GetParam(), resumed(cpu_folder, "", 2))) {
    expect_same_tensors(rank_tensors, expected, 0, "from the CPU to sim");
  }
  for (const int ranks : {1, 4}) {
    for (const Tensors& rank_tensors :
         results_on_sim(ranks, GetParam(), resumed(sim_folder, "", 2))) {
      expect_same_tensors(rank_tensors, expected, 1e-5, "on another world");
    }
  }
}

}  // namespace
}  // namespace ddp_test
}  // namespace lockstep::sim
