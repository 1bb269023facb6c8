// The features of DistributedDataParallel, on the simulated accelerator. Ranks
// on the CPU have the same bits.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/device/autocast.h"
#include "lockstep/parallel/ddp/all_gather_with_grad.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/accelerator/ddp_ranks.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::sim {
namespace ddp_features_test {
namespace {

using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::gradients_of;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Options = DistributedDataParallelOptions;

constexpr int64_t kCount = 4;  // samples of a rank in a step

/// Index of the first sample of a rank in a step.
int64_t first_of(const ProcessGroup& world, int64_t step) {
  return (step * world.size() + world.rank()) * kCount;
}

class DdpFeaturesOnSim : public testing::TestWithParam<const char*> {
 protected:
  /// Expects the results of two ranks on the CPU. Two ranks have only one order
  /// of a sum.
  static void expect_as_on_cpu(const RankTask& task, double tolerance = 0,
                               const std::string& what = "") {
    const RankResults expected = results_on_cpu(2, task);
    const RankResults results = results_on_sim(2, GetParam(), task);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      expect_same_tensors(results[rank], expected[rank], tolerance,
                          what + " rank " + std::to_string(rank));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, DdpFeaturesOnSim,
                         testing::Values("simccl", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

/// Three linear layers. The caller says which of them take part.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    left = register_module("left", torch::nn::Linear(4, 3));
    right = register_module("right", torch::nn::Linear(4, 3));
    never = register_module("never", torch::nn::Linear(4, 3));
  }
  Tensor forward(Tensor x, bool uses_left, bool uses_right) {
    Tensor sum = torch::zeros({x.size(0), 3}, x.options());
    if (uses_left) sum = sum + left(x);
    if (uses_right) sum = sum + right(x).tanh();
    return sum;
  }
  torch::nn::Linear left{nullptr}, right{nullptr}, never{nullptr};
};

TEST_P(DdpFeaturesOnSim, UnusedParametersCountAsZeros) {
  for (const bool is_static : {false, true}) {
    expect_as_on_cpu([is_static](const ProcessGroup& world,
                                 const torch::Device& home) {
      auto net = filled(std::make_shared<BranchesImpl>());
      net->to(home);
      const std::function<std::shared_ptr<BranchesImpl>()> factory = [] {
        return std::make_shared<BranchesImpl>();
      };
      DistributedDataParallel<BranchesImpl> model(
          net, factory, world,
          is_static ? Options().static_graph(true)
                    : Options().find_unused_parameters(true));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      for (int64_t step = 0; step < 4; ++step) {
        sgd.zero_grad();
        const int64_t first = first_of(world, step);
        const bool uses_left = is_static || (step + world.rank()) % 2 == 0;
        loss_of(model->forward(inputs(first, kCount).to(home), uses_left, true),
                targets(first, kCount).to(home))
            .backward();
        sgd.step();
      }
      return copies(net->parameters());
    });
  }
}

TEST_P(DdpFeaturesOnSim, RanksWithoutInputsAnswerTheOthers) {
  for (const bool by_all : {false, true}) {
    expect_as_on_cpu(
        [by_all](const ProcessGroup& world, const torch::Device& home) {
          auto net = net_on(home);
          DistributedDataParallel<NetImpl> model(net, world);
          torch::optim::SGD sgd(net->parameters(), 0.1);
          const int64_t steps = world.rank() == 0 ? 4 : 2;
          model->join(
              [&] {
                for (int64_t step = 0; step < steps; ++step) {
                  sgd.zero_grad();
                  const int64_t first = first_of(world, step);
                  loss_of(model->forward(inputs(first, kCount).to(home)),
                          targets(first, kCount).to(home))
                      .backward();
                  sgd.step();
                }
              },
              JoinOptions().divide_by_initial_world_size(by_all));
          return copies(net->parameters());
        });
  }
}

TEST_P(DdpFeaturesOnSim, HooksReplaceTheSum) {
  const auto with_hook = [](const CommHook& hook, bool is_driven) {
    return [=](const ProcessGroup& world, const torch::Device& home) {
      auto net = net_on(home, /*hidden=*/200);
      DistributedDataParallel<NetImpl> model(
          net, world, Options().intra_op_threads(1).bucket_cap_mb(0.001));
      model->register_comm_hook(hook);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      for (int64_t step = 0; step < 4; ++step) {
        const int64_t first = first_of(world, step);
        if (is_driven) {
          model->train_step(inputs(first, kCount), targets(first, kCount),
                            loss_of, sgd);
          continue;
        }
        sgd.zero_grad();
        loss_of(model->forward(inputs(first, kCount).to(home)),
                targets(first, kCount).to(home))
            .backward();
        sgd.step();
      }
      return copies(net->parameters());
    };
  };
  for (const bool is_driven : {false, true}) {
    expect_as_on_cpu(with_hook(allreduce_hook, is_driven), 0, "all-reduce");
    expect_as_on_cpu(with_hook(fp16_compress_hook, is_driven), 0, "fp16");
    expect_as_on_cpu(with_hook(bf16_compress_hook, is_driven), 0, "bf16");
    // Each run begins with a PowerSGD without errors of earlier steps.
    const CommHook power_sgd = [](const ProcessGroup& world,
                                  GradBucket& bucket) {
      thread_local PowerSGD hook(PowerSGDOptions()
                                     .matrix_approximation_rank(2)
                                     .start_powerSGD_iter(2)
                                     .min_compression_rate(0.01));
      hook(world, bucket);
    };
    expect_as_on_cpu(with_hook(power_sgd, is_driven), 1e-4, "PowerSGD");
  }
}

struct SyncedNetImpl : torch::nn::Module {
  explicit SyncedNetImpl(const ProcessGroup& world)
      : norm(SyncBatchNorm(torch::nn::BatchNormOptions(3), world)) {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)));
    register_module("norm", norm);
  }
  Tensor forward(Tensor x) { return norm(conv(x)).tanh().mean({2, 3}); }
  torch::nn::Conv2d conv{nullptr};
  SyncBatchNorm norm;
};

TEST_P(DdpFeaturesOnSim, SyncBatchNormHasTheMomentsOfAllRanks) {
  expect_as_on_cpu([](const ProcessGroup& world, const torch::Device& home) {
    auto net = filled(std::make_shared<SyncedNetImpl>(world));
    net->to(home);
    const std::function<std::shared_ptr<SyncedNetImpl>()> factory = [&world] {
      return std::make_shared<SyncedNetImpl>(world);
    };
    DistributedDataParallel<SyncedNetImpl> model(net, factory, world);
    torch::optim::SGD sgd(net->parameters(), 0.3);
    for (int64_t step = 0; step < 3; ++step) {
      sgd.zero_grad();
      const Tensor x =
          torch::arange(first_of(world, step) * 50,
                        (first_of(world, step) + kCount) * 50, torch::kFloat)
              .mul(0.61)
              .sin()
              .view({kCount, 2, 5, 5});
      model->forward(x.to(home)).pow(2).mean().backward();
      sgd.step();
    }
    Tensors result = copies(net->parameters());
    for (const Tensor& buffer : copies(net->buffers())) {
      result.push_back(buffer);
    }
    return result;
  });
}

TEST_P(DdpFeaturesOnSim, AContrastiveLossSeesTheBatchesOfAllRanks) {
  expect_as_on_cpu([](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home, /*hidden=*/8);
    DistributedDataParallel<NetImpl> model(net, world);
    const Tensor own = model->forward(inputs(first_of(world, 0), 4).to(home));
    const Tensor all = all_gather_with_grad(world, own);
    all.mm(all.t()).softmax(1).diagonal().log().neg().mean().backward();
    return gradients_of(*net);
  });
}

TEST_P(DdpFeaturesOnSim, AutocastComputesInBFloat16) {
  expect_as_on_cpu([](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    DistributedDataParallel<NetImpl> model(net, world);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    Tensor output;
    for (int64_t step = 0; step < 3; ++step) {
      sgd.zero_grad();
      const int64_t first = first_of(world, step);
      Tensor loss;
      {
        const AutocastScope scope(home.type(), torch::kBFloat16);
        output = model->forward(inputs(first, kCount).to(home));
        loss = loss_of(output, targets(first, kCount).to(home));
      }
      loss.backward();
      sgd.step();
    }
    TORCH_CHECK(output.scalar_type() == torch::kBFloat16);
    return copies(net->parameters());
  });
}

TEST_P(DdpFeaturesOnSim, BuffersAreThoseOfRank0) {
  expect_as_on_cpu([](const ProcessGroup& world, const torch::Device& home) {
    auto net = std::make_shared<testing_nets::NetImpl>();
    filled(std::shared_ptr<torch::nn::Module>(net));
    net->drop->eval();
    net->to(home);
    DistributedDataParallel<testing_nets::NetImpl> model(net, world);
    for (int64_t step = 0; step < 3; ++step) {
      net->zero_grad();
      const Tensor x = torch::arange(2 * 3 * 16, torch::kFloat)
                           .add(1000 * world.rank() + step)
                           .sin()
                           .view({2, 3, 4, 4});
      model->forward(x.to(home)).pow(2).sum().backward();
    }
    Tensors result = gradients_of(*net);
    for (const Tensor& buffer : copies(net->buffers())) {
      result.push_back(buffer);
    }
    return result;
  });
}

TEST_P(DdpFeaturesOnSim, ScriptsAreTrained) {
  expect_as_on_cpu([](const ProcessGroup& world, const torch::Device& home) {
    torch::jit::Module module("net");
    module.register_parameter(
        "weight", torch::ones({4, 1}, home).requires_grad_(), false);
    module.define(
        "def forward(self, x):\n"
        "    return x.mm(self.weight)\n");
    DistributedDataParallel model(module, world);
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t first = first_of(world, step);
      model->forward({inputs(first, kCount).to(home)})
          .toTensor()
          .sum()
          .backward();
    }
    return Tensors{model->parameters()[0].grad()};
  });
}

TEST_P(DdpFeaturesOnSim, GradientPenaltiesAreExchanged) {
  expect_as_on_cpu([](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home, /*hidden=*/8);
    DistributedDataParallel<NetImpl> model(net, world);
    for (int64_t step = 0; step < 2; ++step) {
      const int64_t first = first_of(world, step);
      Tensor x = inputs(first, kCount).to(home).requires_grad_();
      const Tensor output = model->forward(x).tanh().sum();
      const auto slopes = torch::autograd::grad(
          {output}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      (output + slopes[0].pow(2).sum()).backward();
    }
    return gradients_of(*net);
  });
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

TEST_P(DdpFeaturesOnSim, ACheckpointResumesOnAnotherWorldAndDevice) {
  const TemporaryFolder folder;
  const std::string of_sim = folder.path("of_sim");
  const std::string of_cpu = folder.path("of_cpu");
  results_on_sim(2, GetParam(), resumed("", of_sim, 0));
  results_on_cpu(2, resumed("", of_cpu, 0));
  const Tensors expected = results_on_cpu(2, resumed(of_cpu, "", 2))[0];
  for (const Tensors& of_rank : results_on_cpu(2, resumed(of_sim, "", 2))) {
    expect_same_tensors(of_rank, expected, 0, "from sim to the CPU");
  }
  for (const Tensors& of_rank :
       results_on_sim(2, GetParam(), resumed(of_cpu, "", 2))) {
    expect_same_tensors(of_rank, expected, 0, "from the CPU to sim");
  }
  for (const int ranks : {1, 4}) {
    for (const Tensors& of_rank :
         results_on_sim(ranks, GetParam(), resumed(of_sim, "", 2))) {
      expect_same_tensors(of_rank, expected, 1e-5, "on another world");
    }
  }
}

}  // namespace
}  // namespace ddp_features_test
}  // namespace lockstep::sim
