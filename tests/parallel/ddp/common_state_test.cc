// Tests that ranks notice when what they should have in common differs: by
// writes, options and state on one rank, in steps of the engine and in loops of
// the user. Whatever happens, it is found within kSteps.
#include "lockstep/parallel/exchange/common_state.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::common_state_test {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing_ddp::filled;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;

constexpr int64_t kSteps = 100;
constexpr int64_t kSamples = 2;  // of each rank

using Net = std::shared_ptr<NetImpl>;
using Optimizer = torch::optim::Optimizer;

/// An action of rank 1 before its fourth step, and perhaps before all later
/// ones.
struct Act {
  const char* name;
  std::function<void(NetImpl& net, Optimizer& optimizer)> act;
  const char* differs;   ///< part of the message
  bool repeats = false;  ///< in all later steps, too
};

void change(Tensor tensor) {
  const torch::NoGradGuard no_grad;
  tensor.mul_(1.001);
}

const std::vector<Act>& acts() {
  static const std::vector<Act> all{
      {"Write", [](NetImpl& net, Optimizer&) { change(net.first->weight); },
       "'first.weight'"},
      {"WriteToData",
       [](NetImpl& net, Optimizer&) { change(net.second->bias.data()); },
       "'second.bias'"},
      {"SetData",
       [](NetImpl& net, Optimizer&) {
         net.second->weight.set_data(net.second->weight.detach() * 1.001);
       },
       "'second.weight'"},
      {"Initialize",
       [](NetImpl& net, Optimizer&) {
         torch::nn::init::constant_(net.first->bias, 0.25);
       },
       "'first.bias'"},
      {"Scheduler",
       [](NetImpl&, Optimizer& optimizer) {
         optimizer.param_groups()[0].options().set_lr(0.01);
       },
       ""},
  };
  return all;
}

/// Trains for kSteps. Rank 1 does `act`.
template <class Step>
void train(const ProcessGroup& world, NetImpl& net, Optimizer& optimizer,
           const Act& act, const Step& step) {
  for (int64_t i = 0; i < kSteps; ++i) {
    const bool is_due = i == 3 || (i > 3 && act.repeats);
    if (is_due && world.rank() == 1) act.act(net, optimizer);
    const int64_t first = (i * world.size() + world.rank()) * kSamples;
    step(inputs(first, kSamples), targets(first, kSamples));
  }
}

torch::optim::SGD sgd_of(const NetImpl& net) {
  return torch::optim::SGD(net.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

class CommonStates : public testing_ddp::OnBackends {};

TEST_P(CommonStates, DifferInAStepOfTheEngine) {
  for (const int ranks : {2, 3}) {
    for (const Act& act : acts()) {
      const std::string failure = on_ranks(ranks, [&](ProcessGroup world) {
        const Net net = filled(std::make_shared<NetImpl>());
        DistributedDataParallel model(net, world);
        auto optimizer = sgd_of(*net);
        train(world, *net, optimizer, act,
              [&](const Tensor& x, const Tensor& y) {
                model->train_step(x, y, loss_of, optimizer);
              });
      });
      EXPECT_THAT(failure, HasSubstr(act.differs)) << act.name;
      EXPECT_NE(failure, "") << act.name;
    }
  }
}

TEST_P(CommonStates, DifferInALoopOfTheUser) {
  for (const int ranks : {2, 3}) {
    for (const Act& act : acts()) {
      const std::string failure = on_ranks(ranks, [&](ProcessGroup world) {
        const Net net = filled(std::make_shared<NetImpl>());
        DistributedDataParallel model(net, world);
        auto optimizer = sgd_of(*net);
        train(world, *net, optimizer, act,
              [&](const Tensor& x, const Tensor& y) {
                optimizer.zero_grad();
                loss_of(model->forward(x), y).backward();
                optimizer.step();
              });
      });
      EXPECT_THAT(failure, AllOf(HasSubstr(act.differs), HasSubstr("values of"),
                                 HasSubstr("rank 1 from those of")))
          << act.name;
    }
  }
}

TEST_P(CommonStates, NameTheOptionsThatDiffer) {
  const std::string failure = on_ranks(2, [&](ProcessGroup world) {
    const Net net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(net, world);
    torch::optim::AdamW optimizer(net->parameters(),
                                  torch::optim::AdamWOptions(0.02));
    train(world, *net, optimizer, acts().back(),
          [&](const Tensor& x, const Tensor& y) {
            model->train_step(x, y, loss_of, optimizer);
          });
  });
  EXPECT_THAT(failure, HasSubstr("options of the optimizer"));
}

/// Gives `optimizer` the state of another run.
void load_state(NetImpl& net, Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : net.parameters()) {
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(5);
    state->exp_avg(torch::full_like(parameter, 0.5));
    state->exp_avg_sq(torch::full_like(parameter, 0.25));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

/// Trains with AdamW on two ranks. `act` is called on each rank before each
/// step.
template <class Act>
void train_adamw(const ProcessGroup& world, const Act& act) {
  const Net net = filled(std::make_shared<NetImpl>());
  DistributedDataParallel model(net, world);
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(0.01));
  for (int64_t i = 0; i < 8; ++i) {
    act(i, *net, optimizer);
    const int64_t first = (i * world.size() + world.rank()) * kSamples;
    model->train_step(inputs(first, kSamples), targets(first, kSamples),
                      loss_of, optimizer);
  }
}

// Ranks that share the memory of the state would mix what each has loaded.
TEST_P(CommonStates, DifferIfOneRankLoadsOtherState) {
  for (const int64_t step : {0, 3}) {
    for (const int rank : {0, 1}) {
      const std::string failure = on_ranks(2, [&](ProcessGroup world) {
        train_adamw(world, [&](int64_t i, NetImpl& net, Optimizer& optimizer) {
          if (i == step && world.rank() == rank) load_state(net, optimizer);
        });
      });
      EXPECT_THAT(failure, HasSubstr("differ")) << step << ", rank " << rank;
    }
  }
}

TEST_P(CommonStates, AreEqualIfAllRanksLoadTheSame) {
  run_on_ranks(2, [&](ProcessGroup world) {
    train_adamw(world, [&](int64_t i, NetImpl& net, Optimizer& optimizer) {
      if (i == 2) optimizer.state().clear();
      if (i % 3 == 1) load_state(net, optimizer);
      optimizer.param_groups()[0].options().set_lr(0.01 / (1.0 + i));
    });
  });
}

TEST_P(CommonStates, AreEqualIfOneRankLoadsTwice) {
  run_on_ranks(2, [&](ProcessGroup world) {
    train_adamw(world, [&](int64_t i, NetImpl& net, Optimizer& optimizer) {
      if (i == 2 && world.rank() == 1) optimizer.state().clear();
      if (i == 2) load_state(net, optimizer);
      if (i == 2 && world.rank() == 1) load_state(net, optimizer);
    });
  });
}

// As in WGAN.
TEST_P(CommonStates, MayBeClampedThroughDataOnEveryRank) {
  for (const ZeroStage zero :
       {ZeroStage::kOptimizerState, ZeroStage::kGradients}) {
    run_on_ranks(2, [&](ProcessGroup world) {
      if (world.can_share_memory()) return;
      const Net net = filled(std::make_shared<NetImpl>(20'000));
      DistributedDataParallel model(
          net, world, DistributedDataParallelOptions().zero(zero));
      auto optimizer = sgd_of(*net);
      for (int64_t i = 0; i < 6; ++i) {
        const int64_t first = (i * world.size() + world.rank()) * kSamples;
        model->train_step(inputs(first, kSamples), targets(first, kSamples),
                          loss_of, optimizer);
        net->first->weight.data()[17].fill_(0.01);
      }
    });
  }
}

TEST_P(CommonStates, MayDifferIfTheProgramSaysSo) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(
        net, world, DistributedDataParallelOptions().verify_ranks(false));
    auto optimizer = sgd_of(*net);
    train(world, *net, optimizer, acts().front(),
          [&](const Tensor& x, const Tensor& y) {
            optimizer.zero_grad();
            loss_of(model->forward(x), y).backward();
            optimizer.step();
          });
  });
}

// A step without an optimizer has other contents than one with it.
TEST(CommonState, CoversAllOfItWhenTwoKindsOfStepsTakeTurns) {
  constexpr int64_t kElements = 1 << 20;
  const Tensor parameter = torch::zeros({kElements});
  torch::optim::SGD torch_sgd(std::vector{parameter},
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  optim::BlockOptimizer sgd(torch_sgd);
  sgd.follow();
  Tensor momentum;
  sgd.for_each_state([&](const std::string&, size_t, const Tensor& state) {
    momentum = state;
  });
  for (const int64_t at : {int64_t{0}, kElements / 3, kElements - 1}) {
    CommonState a({"w"}), b({"w"});
    int64_t differences = 0;
    for (int64_t step = 0; step < 2 * CommonState::kTurns; ++step) {
      const auto digest = [&](CommonState& state) {
        CommonState::Contents contents;
        if (step % 2 == 1) contents = CommonState::Contents(&sgd);
        contents.add("", 0, parameter);
        if (step % 2 == 1) contents.add("momentum_buffer", 0, momentum);
        return state.next(contents);
      };
      const auto before = digest(a);
      momentum[at] = 1;
      differences += before != digest(b);
      momentum[at] = 0;
    }
    // Two parts may have an element in common.
    EXPECT_THAT(differences, AllOf(Ge(1), Le(2))) << at;
  }
}

TEST_P(CommonStates, MayBeClearedBeforeALoop) {
  run_on_ranks(2, [](ProcessGroup world) {
    const Net net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(net, world);
    torch::optim::AdamW optimizer(net->parameters(),
                                  torch::optim::AdamWOptions(0.01));
    const Tensor x = inputs(4 * world.rank(), 4);
    const Tensor y = targets(4 * world.rank(), 4);
    model->train_step(x, y, loss_of, optimizer);
    optimizer.state().clear();
    for (int i = 0; i < 2; ++i) {
      optimizer.zero_grad();
      loss_of(model->forward(x), y).backward();
      optimizer.step();
    }
  });
}

TEST_P(CommonStates, DifferIfOneRankLoadsItsOptimizer) {
  const Act loads{"Load",
                  [](NetImpl& net, Optimizer& optimizer) {
                    optimizer.state().clear();
                    (void)net;
                  },
                  ""};
  for (const int ranks : {2, 3}) {
    const std::string failure = on_ranks(ranks, [&](ProcessGroup world) {
      const Net net = filled(std::make_shared<NetImpl>());
      DistributedDataParallel model(net, world);
      auto optimizer = sgd_of(*net);
      train(world, *net, optimizer, loads,
            [&](const Tensor& x, const Tensor& y) {
              model->train_step(x, y, loss_of, optimizer);
            });
    });
    EXPECT_THAT(failure, HasSubstr("differ"));
  }
}

/// Flips a bit as a fault of the memory does.
void flip_bit(const Tensor& tensor) {
  auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
  bytes[tensor.nbytes() / 2] ^= 0x10;
}

// A block that one rank alone updates is compared in its turn only
// (MemoryWatch).
TEST_P(CommonStates, DifferIfBitsOfTheMemoryKeepFlipping) {
  const std::vector<Act> all{
      {"Momentum",
       [](NetImpl& net, Optimizer& optimizer) {
         const auto& state =
             optimizer.state().at(net.first->weight.unsafeGetTensorImpl());
         flip_bit(static_cast<torch::optim::SGDParamState&>(*state)
                      .momentum_buffer());
       },
       "", /*repeats=*/true},
      {"Parameter",
       [](NetImpl& net, Optimizer&) { flip_bit(net.first->weight); }, "",
       /*repeats=*/true}};
  for (const Act& flips : all) {
    for (const ZeroStage zero : {ZeroStage::kNone, ZeroStage::kOptimizerState,
                                 ZeroStage::kGradients}) {
      const std::string failure = on_ranks(2, [&](ProcessGroup world) {
        const Net net = filled(std::make_shared<NetImpl>(20'000));
        DistributedDataParallel model(
            net, world, DistributedDataParallelOptions().zero(zero));
        auto optimizer = sgd_of(*net);
        train(world, *net, optimizer, flips,
              [&](const Tensor& x, const Tensor& y) {
                model->train_step(x, y, loss_of, optimizer);
              });
      });
      EXPECT_THAT(failure, HasSubstr("'first.weight'"))
          << flips.name << ", stage " << static_cast<int>(zero);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CommonStates,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::common_state_test
