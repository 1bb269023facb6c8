// Losses that are made of derivatives of the model, or of what it keeps inside.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// An energy whose forces depend on every parameter. Keeps what it computed.
struct EnergyImpl : torch::nn::Module {
  EnergyImpl() {
    first = register_module("first", torch::nn::Linear(4, 5));
    scale = register_parameter("scale", torch::ones({5}));
  }
  Tensor forward(Tensor x) {
    hidden = torch::tanh(first(x));
    return (hidden * hidden * scale).sum(1);
  }
  torch::nn::Linear first{nullptr};
  Tensor scale, hidden;
};
using Energy = DistributedDataParallel<EnergyImpl>;

template <class Model>
Tensor forces_of(Model& model, const Tensor& x) {
  return torch::autograd::grad({model->forward(x).sum()}, {x}, {},
                               /*retain_graph=*/true,
                               /*create_graph=*/true)[0];
}

template <class Model>
Tensor force_loss(Model& model, const Tensor& x) {
  return forces_of(model, x).pow(2).sum(1).mean();
}

Tensor positions(int64_t first, int64_t count) {
  return inputs(first, count).requires_grad_();
}

/// The gradient of the force loss of one module over samples
/// [first, first + count).
std::vector<Tensor> plain_force_gradients(int64_t first, int64_t count) {
  auto plain = filled(std::make_shared<EnergyImpl>());
  force_loss(plain, positions(first, count)).backward();
  return gradients_of(*plain);
}

class DdpDerivatives : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, DdpDerivatives,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

TEST_P(DdpDerivatives, ALossOfInputGradientsAloneIsExchanged) {
  const auto expected = plain_force_gradients(0, 2);
  for (const Options& options :
       {Options(), Options().find_unused_parameters(true),
        Options().static_graph(true),
        Options().gradient_as_bucket_view(false)}) {
    run_on_ranks(2, [&](ProcessGroup world) {
      auto net = filled(std::make_shared<EnergyImpl>());
      Energy model(net, world, options);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        force_loss(model, positions(world.rank(), 1)).backward();
        check_same(gradients_of(*net), expected, 1e-5);
      }
    });
  }
}

TEST_P(DdpDerivatives, EveryAverageCountsTheForwardBehindThem) {
  run_on_ranks(2, [](ProcessGroup world) {
    const bool is_first = world.rank() == 0;
    const Tensor x = positions(is_first ? 0 : 3, is_first ? 3 : 1);
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy by_samples(net, world, Options().average(GradientAverage::kSamples));
    force_loss(by_samples, x).backward();
    check_same(gradients_of(*net), plain_force_gradients(0, 4), 1e-5);

    net = filled(std::make_shared<EnergyImpl>());
    Energy by_ranks(net, world);
    // Added to what was averaged before.
    for (int i = 0; i < 2; ++i) force_loss(by_ranks, x).backward();
    check_same(gradients_of(*net),
               sum_of(plain_force_gradients(0, 3), plain_force_gradients(3, 1)),
               1e-5);
  });
}

TEST_P(DdpDerivatives, SecondDerivativesOfTheInputAreExchangedToo) {
  const auto laplacian = [](auto& model, const Tensor& x) {
    const Tensor forces = forces_of(model, x);
    return torch::autograd::grad({forces.pow(3).sum()}, {x}, {}, true, true)[0]
        .pow(2)
        .sum(1)
        .mean();
  };
  auto plain = filled(std::make_shared<EnergyImpl>());
  laplacian(plain, positions(0, 2)).backward();
  const auto expected = gradients_of(*plain);
  run_on_ranks(2, [&](ProcessGroup world) {
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy model(net, world);
    laplacian(model, positions(world.rank(), 1)).backward();
    check_same(gradients_of(*net), expected, 1e-4);
  });
}

TEST_P(DdpDerivatives, LossesOfThemAndOfTheOutputMayHaveABackwardEach) {
  const auto step = [](auto& model, const Tensor& x) {
    const Tensor energy = model->forward(x);
    const Tensor forces =
        torch::autograd::grad({energy.sum()}, {x}, {}, true, true)[0];
    forces.pow(2).sum(1).mean().backward({}, /*keep_graph=*/true);
    // The bias is behind the energy, too, and the parameters directly.
    (energy.pow(2).mean() + model->parameters()[1].pow(2).sum()).backward();
  };
  auto plain = filled(std::make_shared<EnergyImpl>());
  step(plain, positions(0, 2));
  const auto expected = gradients_of(*plain);
  run_on_ranks(2, [&](ProcessGroup world) {
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy model(net, world);
    step(model, positions(world.rank(), 1));
    check_same(gradients_of(*net), expected, 1e-5);
  });
}

TEST_P(DdpDerivatives, AParameterThatTheyLeaveOutIsNamed) {
  const auto step = [](const ProcessGroup& world, const Options& options) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world, options);
    // The last bias moves no force.
    const Tensor forces = forces_of(model, positions(world.rank(), 1));
    (forces.pow(2).sum() + net->first->bias.sum()).backward();
    TORCH_CHECK(!net->second->bias.grad().defined());
    auto plain = filled(std::make_shared<NetImpl>());
    const Tensor all = forces_of(plain, positions(0, 2));
    (all.pow(2).sum() / 2 + plain->first->bias.sum()).backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
  };
  const std::string failure =
      on_ranks(2, [&](ProcessGroup w) { step(w, Options()); });
  EXPECT_PRED2(contains, failure, "[unused-parameters]");
  EXPECT_PRED2(contains, failure, "'second.bias'");
  run_on_ranks(2, [&](ProcessGroup w) {
    step(w, Options().find_unused_parameters(true));
  });
  run_on_ranks(2,
               [&](ProcessGroup w) { step(w, Options().static_graph(true)); });
}

TEST_P(DdpDerivatives, StayOnTheirRankUnderNoSync) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy model(net, world);
    const int64_t r = world.rank();
    {
      const auto no_sync = model->no_sync();
      force_loss(model, positions(r, 1)).backward();
    }
    check_same(gradients_of(*net), plain_force_gradients(r, 1));
    force_loss(model, positions(2 + r, 1)).backward();
    check_same(gradients_of(*net),
               sum_of(plain_force_gradients(0, 2), plain_force_gradients(2, 2)),
               1e-5);
  });
}

TEST_P(DdpDerivatives, TakingThemExchangesNothing) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy model(net, world);
    // On one rank only: it would hang if it were collective.
    if (world.rank() == 0) {
      const Tensor x = positions(0, 1);
      const Tensor loss = force_loss(model, x);
      // For the input, for a parameter, and only into the
      // input's .grad.
      torch::autograd::grad({loss}, {x}, {}, true);
      torch::autograd::grad({loss}, {net->scale}, {}, true);
      torch::autograd::backward({loss}, {}, true, false, {x});
      for (const Tensor& p : net->parameters()) {
        TORCH_CHECK(!p.grad().defined());
      }
    }
    force_loss(model, positions(world.rank(), 1)).backward();
    check_same(gradients_of(*net), plain_force_gradients(0, 2), 1e-5);
  });
}

TEST_P(DdpDerivatives, ALossOfWhatTheModelKeepsInsideIsExchanged) {
  const auto step = [](const ProcessGroup& world, const Options& options) {
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy model(net, world, options);
    model->forward(inputs(world.rank(), 1));
    // Not an output: what forward() left in a member.
    net->hidden.pow(2).mean().backward();
    auto plain = filled(std::make_shared<EnergyImpl>());
    plain->forward(inputs(0, 2));
    plain->hidden.pow(2).mean().backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
  };
  run_on_ranks(2, [&](ProcessGroup w) {
    step(w, Options().find_unused_parameters(true));
  });
  const std::string failure =
      on_ranks(2, [&](ProcessGroup w) { step(w, Options()); });
  EXPECT_PRED2(contains, failure, "'scale'");
}

TEST_P(DdpDerivatives, ALossOfParametersAloneStaysOnItsRank) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<EnergyImpl>());
    Energy model(net, world);
    const Tensor y = model->forward(inputs(world.rank(), 1));
    // On one rank only: it is not collective.
    if (world.rank() == 0) net->scale.pow(2).sum().backward();
    y.mean().backward();
    auto plain = filled(std::make_shared<EnergyImpl>());
    plain->forward(inputs(0, 2)).mean().backward();
    (plain->scale.pow(2).sum() / 2).backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
  });
}

TEST(DdpOutputs, OfOneNumberCountTheirSamples) {
  struct LossImpl : NetImpl {
    Tensor forward(Tensor x) { return NetImpl::forward(x).pow(2).mean(); }
  };
  EXPECT_EQ(failure_of(
                2, "shm",
                [](ProcessGroup world) {
                  auto net = filled(std::make_shared<LossImpl>());
                  DistributedDataParallel<LossImpl> model(
                      net, world, Options().average(GradientAverage::kSamples));
                  const bool is_first = world.rank() == 0;
                  // The output itself is the root of the graph.
                  model(inputs(is_first ? 0 : 3, is_first ? 3 : 1)).backward();
                  auto plain = filled(std::make_shared<LossImpl>());
                  plain->forward(inputs(0, 4)).backward();
                  check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
                }),
            "");
}

}  // namespace
}  // namespace lockstep
