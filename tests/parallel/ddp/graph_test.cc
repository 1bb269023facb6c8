// Tests which parameters take part in a backward, and how often.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/checkpointed.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// `left` or `right` or both, and `never`.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    left = register_module("left", torch::nn::Linear(4, 2));
    right = register_module("right", torch::nn::Linear(4, 2));
    never = register_module("never", torch::nn::Linear(1, 1));
  }
  Tensor forward(Tensor x, bool uses_left, bool uses_right) {
    Tensor sum = torch::zeros({x.size(0), 2}, x.options());
    if (uses_left) sum = sum + left(x);
    if (uses_right) sum = sum + right(x);
    return sum;
  }
  torch::nn::Linear left{nullptr}, right{nullptr}, never{nullptr};
};

using Branches = DistributedDataParallel<BranchesImpl>;

class DdpGraph : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, DdpGraph,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

TEST_P(DdpGraph, UnusedParametersAreAnErrorInTheSameBackward) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world);
    const auto before = copies(model->parameters());
    try {
      model(inputs(0, 1), true, true).sum().backward();
    } catch (const ParallelError&) {
      check_same(copies(model->parameters()), before);
      throw;
    }
  });
  EXPECT_PRED2(contains, failure, "[unused-parameters]");
  EXPECT_PRED2(contains, failure, "'never.weight', 'never.bias'");
}

TEST_P(DdpGraph, UnusedParametersOfOneRankEndTheOthersWaits) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(
        net, world,
        Options().parameters_to_ignore({"never.weight", "never.bias"}));
    model(inputs(0, 1), true, world.rank() == 0).sum().backward();
  });
  EXPECT_PRED2(contains, failure, "of rank 1");
  EXPECT_PRED2(contains, failure, "'right.weight', 'right.bias'");
}

TEST_P(DdpGraph, FindUnusedCountsThemAsZeros) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world, Options().find_unused_parameters(true));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const Tensor x = inputs(world.rank(), 1);
      model(x, world.rank() == 0, true).sum().backward();
      const Tensor half = inputs(0, 1) * 0.5;
      check_same({net->left->weight.grad()}, {half.expand({2, 4})});
      check_same({net->right->weight.grad()},
                 {inputs(0, 2).mean(0, true).expand({2, 4})}, 1e-6);
      // No rank used it.
      TORCH_CHECK(!net->never->weight.grad().defined());
    }
  });
}

TEST_P(DdpGraph, FindUnusedKeepsWhatNoRankUsed) {
  run_on_ranks(2, [](ProcessGroup world) {
    for (const auto average :
         {GradientAverage::kRanks, GradientAverage::kSamples}) {
      auto net = filled(std::make_shared<BranchesImpl>());
      Branches model(net, world,
                     Options().find_unused_parameters(true).average(average));
      const Tensor x = inputs(world.rank(), 1);
      model(x, true, false).sum().backward();
      const Tensor kept = net->left->weight.grad().clone();
      model(x, false, true).sum().backward();
      check_same({net->left->weight.grad()}, {kept});
    }
  });
}

TEST_P(DdpGraph, AnOutputThatTheLossLeavesOutIsUnused) {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() {
      a = register_module("a", torch::nn::Linear(4, 1));
      b = register_module("b", torch::nn::Linear(4, 1));
    }
    std::tuple<Tensor, Tensor> forward(Tensor x) { return {a(x), b(x)}; }
    torch::nn::Linear a{nullptr}, b{nullptr};
  };
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<TwoImpl>());
    DistributedDataParallel<TwoImpl> model(
        net, world, Options().find_unused_parameters(true));
    std::get<1>(model(inputs(0, 1))).sum().backward();
    TORCH_CHECK(!net->a->weight.grad().defined());
    TORCH_CHECK(net->b->weight.grad().defined());
  });
}

TEST_P(DdpGraph, StaticGraphLearnsWhatIsUnused) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world, Options().static_graph(true));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const Tensor x = inputs(world.rank(), 1);
      model(x, world.rank() == 0, true).sum().backward();
      const Tensor half = inputs(0, 1) * 0.5;
      check_same({net->left->weight.grad()}, {half.expand({2, 4})});
      TORCH_CHECK(!net->never->weight.grad().defined());
    }
  });
}

TEST_P(DdpGraph, StaticGraphNoticesThatItChanged) {
  const std::string fewer = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world, Options().static_graph(true));
    model(inputs(0, 1), true, true).sum().backward();
    model(inputs(0, 1), true, false).sum().backward();
  });
  EXPECT_PRED2(contains, fewer, "[unused-parameters]");
  EXPECT_PRED2(contains, fewer, "'right.weight', 'right.bias'");
  const std::string more = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world, Options().static_graph(true));
    model(inputs(0, 1), true, false).sum().backward();
    model(inputs(0, 1), true, true).sum().backward();
  });
  EXPECT_PRED2(contains, more, "[repeated-gradient]");
}

TEST_P(DdpGraph, ABackwardWithinTheBackwardNeedsAStaticGraph) {
  const auto step = [](const ProcessGroup& world, const Options& options) {
    auto net = filled(std::make_shared<CheckpointedNetImpl>());
    DistributedDataParallel<CheckpointedNetImpl> model(net, world, options);
    for (int i = 0; i < 2; ++i) {
      net->zero_grad();
      loss_of(model(inputs(world.rank(), 1)), targets(world.rank(), 1))
          .backward();
      check_same(gradients_of(*net), plain_gradients(0, 2), 1e-6);
    }
  };
  run_on_ranks(2,
               [&](ProcessGroup w) { step(w, Options().static_graph(true)); });
  const std::string failure =
      on_ranks(2, [&](ProcessGroup w) { step(w, Options()); });
  EXPECT_PRED2(contains, failure, "[unused-parameters]");
  const std::string found = on_ranks(2, [&](ProcessGroup w) {
    step(w, Options().find_unused_parameters(true));
  });
  EXPECT_PRED2(contains, found, "[repeated-gradient]");
}

struct AllCheckpointedImpl : torch::nn::Module {
  AllCheckpointedImpl() {
    layer = register_module("layer", torch::nn::Linear(4, 3));
  }
  Tensor forward(Tensor x) {
    return Checkpointed::apply(x.requires_grad_(), layer);
  }
  torch::nn::Linear layer{nullptr};
};

TEST_P(DdpGraph, EvenTheWholeModelMayBeComputedAgain) {
  const auto step = [](const ProcessGroup& world, const Options& options) {
    auto plain = filled(std::make_shared<AllCheckpointedImpl>());
    plain->forward(inputs(0, 2)).mean().backward();
    auto net = filled(std::make_shared<AllCheckpointedImpl>());
    DistributedDataParallel<AllCheckpointedImpl> model(net, world, options);
    for (int i = 0; i < 2; ++i) {
      net->zero_grad();
      model(inputs(world.rank(), 1)).mean().backward();
      check_same(gradients_of(*net), gradients_of(*plain), 1e-6);
    }
  };
  run_on_ranks(2,
               [&](ProcessGroup w) { step(w, Options().static_graph(true)); });
  EXPECT_PRED2(contains,
               on_ranks(2, [&](ProcessGroup w) { step(w, Options()); }),
               "[unused-parameters]");
}

TEST_P(DdpGraph, FindUnusedAveragesWhatNoSyncAddedUp) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world, Options().find_unused_parameters(true));
    const Tensor x = inputs(world.rank(), 1);
    {
      const auto no_sync = model->no_sync();
      model(x, true, false).sum().backward();
    }
    model(x, false, true).sum().backward();
    const Tensor mean = inputs(0, 2).mean(0, true).expand({2, 4});
    check_same({net->left->weight.grad()}, {mean}, 1e-6);
    check_same({net->right->weight.grad()}, {mean}, 1e-6);
  });
}

TEST_P(DdpGraph, AModuleThatWasCastAfterwardsIsAnError) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    net->to(torch::kDouble);
    model(inputs(0, 1).to(torch::kDouble)).sum().backward();
  });
  EXPECT_PRED2(contains, failure, "[module-changed]");
  EXPECT_PRED2(contains, failure, "'first.weight' was moved or cast");
}

TEST_P(DdpGraph, WhatWasFrozenAtTheWrapAndTrainsLaterIsAnError) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    Tensor late = net->parameters()[0].requires_grad_(false);
    DistributedDataParallel<NetImpl> model(net, world);
    model(inputs(0, 1)).sum().backward();
    late.requires_grad_(true);
    model(inputs(0, 1)).sum().backward();
  });
  EXPECT_PRED2(contains, failure, "[module-changed]");
  EXPECT_PRED2(contains, failure, "'first.weight' was frozen");
}

TEST_P(DdpGraph, FrozenModelsPassGradientsToTheirInputs) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    for (auto& p : net->parameters()) {
      p.requires_grad_(false);
    }
    const Tensor x = inputs(0, 1).requires_grad_();
    // On one rank only: it exchanges nothing.
    if (world.rank() == 0) model(x).sum().backward();
    TORCH_CHECK(x.grad().defined() == (world.rank() == 0));
  });
}

TEST_P(DdpGraph, TheLossMayUseParametersBesideTheModel) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<BranchesImpl>());
    Branches model(net, world);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      const Tensor x = inputs(world.rank(), 1);
      Tensor loss = model(x, true, true).sum();
      loss = loss + net->never->weight.sum() * 3;
      loss = loss + net->never->bias.sum() * 5;
      loss.backward();
      TORCH_CHECK(net->never->weight.grad().item<float>() == 3);
      TORCH_CHECK(net->never->bias.grad().item<float>() == 5);
    }
  });
}

TEST_P(DdpGraph, AReusedParameterIsSummedOnce) {
  struct ReusedImpl : torch::nn::Module {
    ReusedImpl() { fc = register_module("fc", torch::nn::Linear(4, 4)); }
    Tensor forward(Tensor x) { return fc(fc(x)); }
    torch::nn::Linear fc{nullptr};
  };
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<ReusedImpl>());
    auto plain = filled(std::make_shared<ReusedImpl>());
    plain->forward(inputs(0, 2)).mean().backward();
    DistributedDataParallel<ReusedImpl> model(net, world);
    model(inputs(world.rank(), 1)).mean().backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-6);
  });
}

TEST_P(DdpGraph, GradOfSomethingElseExchangesNothing) {
  run_on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    // On one rank only: it would hang if it were collective.
    if (world.rank() == 0) {
      const Tensor x = inputs(0, 1).requires_grad_();
      const auto gradients = torch::autograd::grad({model(x).sum()}, {x});
      TORCH_CHECK(gradients[0].defined());
      TORCH_CHECK(!net->first->weight.grad().defined());
    }
    loss_of(model(inputs(world.rank(), 1)), targets(world.rank(), 1))
        .backward();
    check_same(gradients_of(*net), plain_gradients(0, 2), 1e-6);
  });
}

TEST_P(DdpGraph, GradientPenaltiesWork) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto penalty = [](auto& model, const Tensor& x) {
      const auto inner =
          torch::autograd::grad({model->forward(x).sum()}, {x}, {},
                                /*retain_graph=*/true, /*create_graph=*/true);
      return inner[0].pow(2).mean() + model->forward(x).pow(2).mean();
    };
    auto plain = filled(std::make_shared<NetImpl>());
    penalty(plain, inputs(0, 2).requires_grad_()).backward();
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    penalty(model, inputs(world.rank(), 1).requires_grad_()).backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
  });
}

TEST_P(DdpGraph, SecondDerivativesAcrossRanksAreRefused) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    model(inputs(0, 1))
        .sum()
        .backward({}, /*retain_graph=*/true,
                  /*create_graph=*/true);
  });
  EXPECT_PRED2(contains, failure, "[unsupported-graph]");
  EXPECT_PRED2(contains, failure, "create_graph=true");
}

}  // namespace
}  // namespace lockstep
