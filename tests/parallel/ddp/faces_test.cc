// Tests features over several ranks that DataParallel and
// DistributedDataParallel share: steps made by the engine, loops written by the
// user, no_sync(), join(), comm hooks.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::faces_test {
namespace {

using testing_ddp::check_same;
using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::gradients_of;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;

constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 4;
// A small net, and one with weights of 320 kB, which are summed separately.
constexpr int64_t kSmall = 8, kLarge = 20'000;

std::shared_ptr<NetImpl> new_net(int64_t hidden = kSmall) {
  return filled(std::make_shared<NetImpl>(hidden));
}

torch::optim::SGD sgd_of(const NetImpl& net) {
  return torch::optim::SGD(net.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// This rank's part of batch `step`.
struct Part {
  Tensor x, y;
};
Part part_of(const ProcessGroup& world, int64_t step) {
  const int64_t samples = kBatch / world.size();
  const int64_t first = step * kBatch + world.rank() * samples;
  return {inputs(first, samples), targets(first, samples)};
}

DataParallelOptions over(const ProcessGroup& world) {
  return DataParallelOptions().process_group(world).intra_op_threads(1);
}

/// kSteps steps of the engine.
template <class Model>
void train(Model& model, torch::optim::Optimizer& optimizer,
           const ProcessGroup& world) {
  for (int64_t step = 0; step < kSteps; ++step) {
    const Part part = part_of(world, step);
    const StepResult result =
        model->train_step(part.x, part.y, loss_of, optimizer);
    TORCH_CHECK(result.samples == kBatch);
  }
}

/// The parameters of one process with 4 shards, after kSteps.
std::vector<Tensor> expected_parameters(int64_t hidden = kSmall) {
  const auto net = new_net(hidden);
  DataParallel model(net, tested::devices(1),
                     DataParallelOptions().shards(4).intra_op_threads(1));
  auto optimizer = sgd_of(*net);
  train(model, optimizer, ProcessGroup());
  return copies(net->parameters());
}

/// The code of what `act` throws; nothing else will do.
ErrorCode code_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.code();
  }
  throw std::runtime_error("nothing was thrown");
}

class Faces : public testing_ddp::OnBackends {};

TEST_P(Faces, DdpMakesTheStepsOfDataParallelToTheBit) {
  for (const int64_t hidden : {kSmall, kLarge}) {
    const auto expected = expected_parameters(hidden);
    for (const int ranks : {1, 2, 4}) {
      run_on_ranks(ranks, [&](ProcessGroup world) {
        const auto net = new_net(hidden);
        DistributedDataParallel model(
            net, world,
            DistributedDataParallelOptions().shards(4).intra_op_threads(1));
        auto optimizer = sgd_of(*net);
        train(model, optimizer, world);
        check_same(copies(net->parameters()), expected);
      });
    }
  }
}

// Momentum and parameters that the ranks share in a train_step() become each
// rank's own in a loop of the user's, and are shared again.
TEST_P(Faces, StepsOfBothKindsTakeTurns) {
  const auto expected = expected_parameters();
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = new_net();
    DistributedDataParallel model(net, world);
    auto optimizer = sgd_of(*net);
    for (int64_t step = 0; step < kSteps; ++step) {
      const Part part = part_of(world, step);
      if (step % 2 == 0) {
        model->train_step(part.x, part.y, loss_of, optimizer);
        continue;
      }
      loss_of(model->forward(part.x), part.y).backward();
      optimizer.step();
      // A train_step() would add them to its own.
      optimizer.zero_grad();
    }
    // Shards of another size, so not the bits.
    check_same(copies(net->parameters()), expected, 1e-5);
  });
}

TEST_P(Faces, NoSyncKeepsTheGradientsOfStepsUntilTheNext) {
  const auto net = new_net();
  (loss_of(net->forward(inputs(0, kBatch)), targets(0, kBatch)) +
   loss_of(net->forward(inputs(kBatch, kBatch)), targets(kBatch, kBatch)))
      .backward();
  const auto expected = gradients_of(*net);
  auto plain = sgd_of(*net);
  plain.step();
  const auto updated = copies(net->parameters());
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto own = new_net();
    DistributedDataParallel model(own, world);
    const Part first = part_of(world, 0);
    const Part second = part_of(world, 1);
    {
      const auto guard = model->no_sync();
      model->train_step(first.x, first.y, loss_of);
    }
    const auto local = gradients_of(*own);
    model->train_step(second.x, second.y, loss_of);
    check_same(gradients_of(*own), expected, 1e-6);
    // The same, with an update at the end.
    model->zero_grad();
    auto optimizer = sgd_of(*own);
    {
      const auto guard = model->no_sync();
      model->train_step(first.x, first.y, loss_of);
    }
    check_same(gradients_of(*own), local);
    model->train_step(second.x, second.y, loss_of, optimizer);
    check_same(copies(own->parameters()), updated, 1e-6);
  });
}

// A backward leaves a mean and a step leaves a share of the batch's mean.
TEST_P(Faces, NoSyncAddsGradientsOfStepsAndBackwards) {
  const auto net = new_net();
  for (int64_t batch = 0; batch < 3; ++batch) {
    loss_of(net->forward(inputs(batch * kBatch, kBatch)),
            targets(batch * kBatch, kBatch))
        .backward();
  }
  const auto expected = gradients_of(*net);
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto own = new_net();
    DistributedDataParallel model(own, world);
    const Part first = part_of(world, 0), second = part_of(world, 1),
               third = part_of(world, 2);
    for (const bool begins_with_step : {true, false}) {
      model->zero_grad();
      const auto step = [&] { model->train_step(first.x, first.y, loss_of); };
      {
        const auto guard = model->no_sync();
        if (begins_with_step) step();
        loss_of(model->forward(second.x), second.y).backward();
        if (!begins_with_step) step();
      }
      loss_of(model->forward(third.x), third.y).backward();
      check_same(gradients_of(*own), expected, 1e-5);
    }
  });
}

/// Uses `gate` only if the first value of its input is positive.
struct GatedImpl : NetImpl {
  GatedImpl() { gate = register_parameter("gate", torch::ones({3})); }
  Tensor forward(Tensor x) {
    const Tensor output = NetImpl::forward(x);
    return x[0][0].item<float>() > 0 ? output * gate : output;
  }
  Tensor gate;
};

/// Trains two steps with `gate` in both shards, so that the buckets hold a sum,
/// then one with it in the first shard, and one without it.
template <class Model>
std::vector<Tensor> train_gated(Model& model, const ProcessGroup& world) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Part part = part_of(world, step);
    part.x.select(1, 0).fill_(1);
    for (const int64_t shard : {0, 1}) {
      const int64_t row = shard * kBatch / 2 - world.rank() * part.x.size(0);
      const bool is_here = 0 <= row && row < part.x.size(0);
      if (is_here && step + shard > 2) part.x[row][0] = -1;
    }
    model->train_step(part.x, part.y, loss_of, optimizer);
  }
  return copies(model->parameters());
}

TEST_P(Faces, ARankWithoutAGradientAddsNothing) {
  const auto factory = [] { return std::make_shared<GatedImpl>(); };
  DataParallel<GatedImpl> single(
      filled(factory()), factory, tested::devices(1),
      DataParallelOptions().shards(2).intra_op_threads(1));
  const auto expected = train_gated(single, ProcessGroup());
  run_on_ranks(2, [&](ProcessGroup world) {
    DistributedDataParallel<GatedImpl> model(filled(factory()), factory, world);
    check_same(train_gated(model, world), expected);
  });
}

/// Trains ranks of `devices` devices each, with a hook that sums.
void train_with_hook(const ProcessGroup& world, int devices,
                     const std::vector<Tensor>& expected, double tolerance) {
  const auto net = new_net();
  OverRanks model(net, tested::devices(devices), over(world).shards(4));
  int64_t buckets = 0;
  model->register_comm_hook([&](const ProcessGroup& group, GradBucket& bucket) {
    ++buckets;
    allreduce_hook(group, bucket);
  });
  auto optimizer = sgd_of(*net);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Part part = part_of(world, step);
    model->train_step(part.x, part.y, loss_of, optimizer);
  }
  TORCH_CHECK(buckets == kSteps, buckets, " buckets");
  check_same(copies(net->parameters()), expected, tolerance);
}

TEST_P(Faces, ACommHookSeesTheGradientsOfAStepAndReplacesTheirSum) {
  const auto expected = expected_parameters();
  run_on_ranks(
      2, [&](ProcessGroup world) { train_with_hook(world, 1, expected, 0); });
}

TEST_P(Faces, ACommHookSeesTheSumOfTwoDevices) {
  const auto expected = expected_parameters();
  run_on_ranks(2, [&](ProcessGroup world) {
    train_with_hook(world, 2, expected, 1e-6);
  });
}

TEST_P(Faces, ACommHookMayRoundTheGradients) {
  const auto expected = expected_parameters();
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = new_net();
    DistributedDataParallel model(net, world);
    model->register_comm_hook(bf16_compress_hook);
    auto optimizer = sgd_of(*net);
    train(model, optimizer, world);
    const auto got = copies(net->parameters());
    // Eight bits of each gradient are left.
    check_same(got, expected, 1e-2);
    TORCH_CHECK(!torch::equal(got[0].cpu(), expected[0].cpu()));
  });
}

TEST_P(Faces, RefuseWhatAStepCannotDo) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto net = new_net();
    auto optimizer = sgd_of(*net);
    const Part part = part_of(world, 0);
    DistributedDataParallel model(net, world);
    {
      const auto guard = model->no_sync();
      TORCH_CHECK(code_of([&] {
                    model->train_step(part.x, part.y, loss_of, optimizer);
                  }) == ErrorCode::kBadOption);
    }
    model->join([&] {
      TORCH_CHECK(code_of([&] {
                    model->train_step(part.x, part.y, loss_of, optimizer);
                  }) == ErrorCode::kBadOption);
    });
  });
}

// Parameters that train_step() shared must be each rank's own again.
TEST_P(Faces, ACommHookAfterAStepLeavesNothingShared) {
  const auto expected = expected_parameters();
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = new_net();
    DistributedDataParallel model(net, world);
    auto optimizer = sgd_of(*net);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 1) {
        model->register_comm_hook(allreduce_hook);
      }
      const Part part = part_of(world, step);
      if (step == 0) {
        model->train_step(part.x, part.y, loss_of, optimizer);
        continue;
      }
      optimizer.zero_grad();
      loss_of(model->forward(part.x), part.y).backward();
      optimizer.step();
    }
    // Shards of another size, so not the bits.
    check_same(copies(net->parameters()), expected, 1e-5);
  });
}

TEST_P(Faces, AnIgnoredParameterIsNeverShared) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto net = new_net();
    const torch::NoGradGuard no_grad;
    net->second->bias.fill_(world.rank());
    DistributedDataParallel model(
        net, world,
        DistributedDataParallelOptions().parameters_to_ignore({"second.bias"}));
    TORCH_CHECK(code_of([&] { model->share_parameters(); }) ==
                ErrorCode::kBadOption);
    TORCH_CHECK(net->second->bias.eq(world.rank()).all().item<bool>());
  });
}

/// A penalty on the gradient at points that the module makes.
struct PenaltyImpl : NetImpl {
  Tensor forward(Tensor x) {
    const Tensor at = x.detach().requires_grad_();
    const Tensor output = NetImpl::forward(at);
    const Tensor slope = torch::autograd::grad({output.sum()}, {at}, {},
                                               /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
    return output + slope.pow(2).sum(1, /*keepdim=*/true);
  }
};

TEST_P(Faces, TakeLeavesThatTheModuleMakesForItsOwn) {
  const auto plain = filled(std::make_shared<PenaltyImpl>());
  loss_of(plain->forward(inputs(0, kBatch)), targets(0, kBatch)).backward();
  const auto expected = gradients_of(*plain);
  const auto factory = [] { return std::make_shared<PenaltyImpl>(); };
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(factory());
    DistributedDataParallel<PenaltyImpl> model(net, factory, world);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const Part part = part_of(world, 0);
      model->train_step(part.x, part.y, loss_of);
      check_same(gradients_of(*net), expected, 1e-5);
    }
  });
}

TEST_P(Faces, RefuseALeafFromOutside) {
  const std::string failure = on_ranks(2, [&](ProcessGroup world) {
    const Tensor temperature = torch::ones({}, torch::dtype(torch::kFloat)
                                                   .device(testing_ddp::home())
                                                   .requires_grad(true));
    DistributedDataParallel model(new_net(), world);
    const Part part = part_of(world, 0);
    model->train_step(part.x, part.y,
                      [&](const Tensor& output, const Tensor& target) {
                        return loss_of(output * temperature, target);
                      });
  });
  EXPECT_NE(failure.find("[unsupported-graph]"), std::string::npos) << failure;
}

// The graph keeps what sums the gradients.
TEST_P(Faces, SumABackwardAfterTheWrapperIsDestroyed) {
  const auto plain = new_net();
  loss_of(plain->forward(inputs(0, kBatch)), targets(0, kBatch)).backward();
  const auto expected = gradients_of(*plain);
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = new_net();
    Tensor loss;
    {
      DistributedDataParallel model(net, world);
      const Part part = part_of(world, 0);
      loss = loss_of(model->forward(part.x), part.y);
    }
    loss.backward();
    check_same(gradients_of(*net), expected, 1e-5);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Faces,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

}  // namespace
}  // namespace lockstep::faces_test
