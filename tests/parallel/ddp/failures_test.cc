// Tests that if something fails on one rank, no other rank waits for it.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;
using Options = DistributedDataParallelOptions;

class DdpFailure : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, DdpFailure,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      const torch::autograd::variable_list&) {
    throw std::runtime_error("broken in the backward");
  }
};

// A user of DDP knows backward() and join(), and no collectives.
TEST_P(DdpFailure, AStepThatTheOtherRankDoesNotMakeIsExplained) {
  if (!sums_along_tree()) GTEST_SKIP() << "needs shm or tcp";
  std::string failure;
  on_ranks(2, [&](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
    if (world.rank() == 0) return;
    try {
      loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
    } catch (const CommError& error) {
      failure = error.what();
    }
  });
  EXPECT_PRED2(contains, failure, "backward()");
  EXPECT_PRED2(contains, failure, "join()");
}

TEST_P(DdpFailure, AnExceptionInABackwardEndsTheOthersWaits) {
  const Stopwatch watch;
  std::mutex mutex;
  std::vector<std::string> failures(2);
  on_ranks(2, [&](ProcessGroup world) {
    struct FailingImpl : NetImpl {
      Tensor forward(Tensor x) {
        Tensor hidden = torch::relu(first(x));
        if (fails) hidden = FailsInBackward::apply(hidden);
        return second(hidden);
      }
      bool fails = false;
    };
    auto net = filled(std::make_shared<FailingImpl>());
    // A bucket for each, so that some are on their way when it happens.
    DistributedDataParallel<FailingImpl> model(
        net, world, Options().bucket_cap_mb(0.00001));
    loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
    net->fails = world.rank() == 1;
    try {
      loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
      world.barrier();  // a backend of devices tells it at the next call
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      failures[static_cast<size_t>(world.rank())] = error.what();
      if (world.rank() == 1) {
        // Used again, it says why it can't be.
        net->fails = false;
        EXPECT_THROW(model(inputs(0, 1)), ParallelError);
      }
      throw;
    }
  });
  EXPECT_PRED2(contains, failures[1], "broken in the backward");
  EXPECT_NE(failures[0], "");
  if (GetParam() == std::string("shm")) {
    EXPECT_PRED2(contains, failures[0], "the backward of rank 1");
  }
  EXPECT_LT(watch.seconds(), 30);
}

TEST_P(DdpFailure, AnExceptionInAHookIsThatOfTheBackward) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    model->register_comm_hook(
        [](const ProcessGroup& ranks, GradBucket& bucket) {
          if (ranks.rank() == 1) throw std::runtime_error("broken hook");
          ranks.all_reduce(bucket.buffer);
        });
    loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
  });
  EXPECT_PRED2(contains, failure, "broken hook");
}

TEST(DdpFailureOverShm, IsToldEvenIfTheRankLivesOn) {
  const std::string failure = failure_of(2, "shm", [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    if (world.rank() == 0) {
      const Stopwatch watch;
      EXPECT_ANY_THROW(loss_of(model(inputs(0, 1)), targets(0, 1)).backward());
      EXPECT_LT(watch.seconds(), 20);
      torch::Tensor done = torch::ones({1}, home());
      world.send(done, 1);
      return;
    }
    // The exception comes after the backward has reached the model.
    Tensor output = model(inputs(0, 1));
    net->second->weight.register_hook(
        [](Tensor) -> Tensor { throw std::runtime_error("broken"); });
    EXPECT_ANY_THROW(output.sum().backward());
    EXPECT_THROW(model(inputs(0, 1)), ParallelError);
    torch::Tensor done = torch::zeros({1}, home());
    world.recv(done, 0);
  });
  EXPECT_EQ(failure, "");
}

TEST_P(DdpFailure, AHookMayNotReplaceTheBuffer) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    model->register_comm_hook([](const ProcessGroup&, GradBucket& bucket) {
      bucket.buffer = bucket.buffer * bucket.weight;
    });
    loss_of(model(inputs(0, 1)), targets(0, 1)).backward();
  });
  EXPECT_PRED2(contains, failure, "[misuse]");
  EXPECT_PRED2(contains, failure, "bucket.buffer");
}

TEST_P(DdpFailure, OtherLayoutsAreRefused) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3));
    if (world.rank() == 1) {
      conv->weight.set_data(
          conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    conv->to(home());
    DistributedDataParallel<torch::nn::Conv2dImpl>(conv.ptr(), world);
  });
  EXPECT_PRED2(contains, failure, "strides [27, 1, 9, 3]");
}

TEST_P(DdpFailure, OtherModulesAreRefusedByName) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    DistributedDataParallel<NetImpl>(
        filled(std::make_shared<NetImpl>(4 + world.rank())), world);
  });
  EXPECT_PRED2(contains, failure, "[parameters-differ]");
  EXPECT_PRED2(contains, failure, "'first.weight'");
}

TEST(DdpArguments, AreChecked) {
  struct EmptyImpl : torch::nn::Module {
    Tensor forward(Tensor x) { return x; }
  };
  EXPECT_THROW(DistributedDataParallel<EmptyImpl>(std::make_shared<EmptyImpl>(),
                                                  ProcessGroup()),
               InvalidArgument);
  EXPECT_THROW(DistributedDataParallel<NetImpl>(std::make_shared<NetImpl>(),
                                                ProcessGroup(),
                                                Options().bucket_cap_mb(0)),
               InvalidArgument);
  DistributedDataParallel<NetImpl> model(std::make_shared<NetImpl>(),
                                         ProcessGroup());
  model->register_comm_hook(allreduce_hook);
  EXPECT_THROW(model->register_comm_hook(allreduce_hook), InvalidArgument);
  EXPECT_THROW(PowerSGD(PowerSGDOptions().start_powerSGD_iter(1)),
               InvalidArgument);
  EXPECT_THROW(PowerSGD(PowerSGDOptions().matrix_approximation_rank(0)),
               InvalidArgument);
  PowerSGD hook{PowerSGDOptions()};
  hook.prepare({torch::ones({8, 8})});
  auto state = hook.state_dict();
  hook.load_state_dict(state);
  state["error.0"] = torch::zeros({8, 7});
  EXPECT_THROW(hook.load_state_dict(state), InvalidArgument);
  state.erase("error.0");
  EXPECT_THROW(hook.load_state_dict(state), InvalidArgument);
}

TEST(DdpLifetime, GraphsMayOutliveTheModel) {
  Tensor loss;
  {
    auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, ProcessGroup());
    loss = model(inputs(0, 1)).sum();
  }
  loss.backward();
}

}  // namespace
}  // namespace lockstep
