#include "lockstep/train/state/outer_step.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/parallel/module/module_handle.h"

namespace lockstep::training {
namespace {

using torch::Tensor;

constexpr int kMeeting = 2;  // ranks

/// Returns the change of rank `rank` in outer step `step`.
Tensor change_of(int rank, int step) {
  return torch::arange(6, torch::kFloat)
      .view({2, 3})
      .mul(0.3 * (rank + 1))
      .add(0.7 * step);
}

Tensor first_values() { return torch::ones({2, 3}); }

/// The parameters after three outer steps of two ranks. Every rank's must be
/// the same.
Tensor after_steps(const CommunicationOptions& options, bool reloads = false) {
  Tensor result;
  ProcessGroupOptions world_options;
  world_options.backend("tcp");
  spawn(
      kMeeting,
      [&](const ProcessGroup& world) {
        ModuleHandle module;
        Tensor weight = first_values().requires_grad_();
        const Tensor statistic = torch::full({2}, world.rank() + 1.0);
        module.parameters = {{"weight", weight}, {"tied", weight}};
        module.buffers = {{"statistic", statistic}};
        auto outer = std::make_unique<OuterStep>(world, module, options);
        for (int step = 0; step < 3; ++step) {
          {
            const torch::NoGradGuard no_grad;
            weight.sub_(change_of(world.rank(), step));
          }
          outer->step();
          if (!reloads) continue;
          std::map<std::string, Tensor> state;
          for (const auto& [name, tensor] : outer->state()) {
            state[name] = tensor.clone();
          }
          outer = std::make_unique<OuterStep>(world, module, options);
          outer->load_state(state);
        }
        TORCH_CHECK(statistic[0].item<double>() == 1, "rank 0's");
        const auto per_rank = world.all_gather(weight.detach()).result();
        TORCH_CHECK(torch::equal(per_rank[0], per_rank[1]));
        if (world.rank() == 0) result = weight.detach().clone();
      },
      world_options);
  return result;
}

Tensor mean_change(int step) {
  return (change_of(0, step) / kMeeting) + (change_of(1, step) / kMeeting);
}

TEST(OuterStep, AveragesTheRanks) {
  Tensor expected = first_values();
  for (int step = 0; step < 3; ++step) expected = expected - mean_change(step);
  // The changes are differences of rounded parameters.
  EXPECT_TRUE(torch::allclose(
      after_steps(
          CommunicationOptions().outer_optimizer(OuterOptimizer::kAverage)),
      expected, 1e-6, 1e-6));
}

TEST(OuterStep, IsTorchsSgdWithNesterov) {
  Tensor expected = first_values().requires_grad_();
  torch::optim::SGD optimizer(
      std::vector{expected},
      torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  for (int step = 0; step < 3; ++step) {
    expected.mutable_grad() = mean_change(step);
    optimizer.step();
  }
  const Tensor got = after_steps({});
  EXPECT_TRUE(torch::allclose(got, expected, 1e-6, 1e-6));
  EXPECT_TRUE(torch::equal(after_steps({}, /*reloads=*/true), got));
}

TEST(OuterStep, SendsRoundedChanges) {
  const Tensor exact = after_steps({});
  const Tensor rounded = after_steps(
      CommunicationOptions().compression(GradCompression::kBFloat16));
  EXPECT_FALSE(torch::equal(rounded, exact));
  // bfloat16 has eight bits.
  EXPECT_TRUE(torch::allclose(rounded, exact, 0, 0.05));
}

// Small tensors of a type share a message, and large ones have their own.
TEST(OuterStep, HasTheBitsOfOneSumPerTensor) {
  const auto values = [](int rank, int64_t count, torch::ScalarType type) {
    return (torch::arange(count, torch::kDouble) * (rank + 0.37))
        .sin()
        .to(type);
  };
  const std::vector<std::pair<int64_t, torch::ScalarType>> tensors{
      {7, torch::kFloat},    {100'000, torch::kFloat}, {5, torch::kBFloat16},
      {300, torch::kDouble}, {1'000, torch::kFloat},   {0, torch::kFloat}};
  spawn(3, [&](const ProcessGroup& world) {
    ModuleHandle module;
    for (const auto& [count, type] : tensors) {
      module.parameters.emplace_back("weight", torch::ones({count}, type));
    }
    OuterStep outer(
        world, module,
        CommunicationOptions().outer_optimizer(OuterOptimizer::kAverage));
    std::vector<Tensor> expected;
    for (auto& [name, parameter] : module.parameters) {
      const Tensor anchor = parameter.clone();
      parameter.copy_(
          values(world.rank(), parameter.numel(), parameter.scalar_type()));
      const Tensor change = (anchor - parameter) / world.size();
      world.all_reduce(change);
      expected.push_back(anchor - change);
    }
    outer.step();
    for (size_t p = 0; p < expected.size(); ++p) {
      TORCH_CHECK(torch::equal(module.parameters[p].second, expected[p]), p);
    }
  });
}

}  // namespace
}  // namespace lockstep::training
