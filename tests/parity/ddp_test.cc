// Compares DistributedDataParallel with PyTorch's own, which pytorch_ddp.py
// runs.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parity/ddp_scenarios.h"

namespace lockstep {
namespace {

using namespace testing_parity;  // NOLINT
using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

constexpr int kRanks = 2;
constexpr const char* kGradient = "grad.";

Tensors read(const std::string& path) {
  const auto tensors = read_safetensors(path).tensors;
  return {tensors.begin(), tensors.end()};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<Tensor>& parameters) {
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::AdamW>(
      parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.01));
}

/// Returns true on rank 1 only, then on no rank, then on both, and so on.
bool takes_detour(int64_t step, int rank) {
  return (step % 3 == 0 && rank == 1) || step % 3 == 2;
}

void train(const Scenario& scenario, const DistributedDataParallel<Net>& model,
           torch::optim::Optimizer& optimizer, int rank,
           const Tensors& batches) {
  const Tensor x = batches.at("x")[rank], y = batches.at("y")[rank];
  int64_t batch = 0;
  const auto backward = [&](bool detour) {
    Tensor loss = torch::zeros({});
    for (int64_t i = 0; i < scenario.forwards; ++i, ++batch) {
      const Tensor output = model(x[batch], detour);
      loss = loss + torch::nn::functional::cross_entropy(output, y[batch]);
    }
    (loss * scenario.loss_scale).backward();
  };
  for (int64_t step = 0; step < scenario.steps[rank]; ++step) {
    const bool detour = scenario.has_detours && takes_detour(step, rank);
    optimizer.zero_grad();
    for (int64_t micro = 1; micro < scenario.micro_batches; ++micro) {
      const auto no_sync = model->no_sync();
      backward(detour);
    }
    backward(detour);
    for (const Tensor& parameter : model->parameters()) {
      Tensor gradient = parameter.grad();
      if (gradient.defined()) gradient /= scenario.loss_scale;
    }
    optimizer.step();
  }
}

/// Returns this rank's final state_dict and its gradients.
Tensors trained(const Scenario& scenario, const ProcessGroup& world,
                const std::string& optimizer_name, const NamedTensors& initial,
                const Tensors& batches) {
  const auto net = scenario.net();
  load_state_dict(*net, initial);
  const DistributedDataParallel<Net> model(net, world, scenario.options);
  if (scenario.hook) model->register_comm_hook(scenario.hook());
  const auto optimizer = make_optimizer(optimizer_name, model->parameters());
  const auto steps = [&] {
    train(scenario, model, *optimizer, world.rank(), batches);
  };
  if (scenario.join) {
    model->join(steps, *scenario.join);
  } else {
    steps();
  }
  Tensors result;
  for (const auto& [name, tensor] : state_dict(*net)) {
    result[name] = tensor.detach().clone();
  }
  for (const auto& item : net->named_parameters()) {
    const Tensor& gradient = item.value().grad();
    if (gradient.defined()) result[kGradient + item.key()] = gradient.clone();
  }
  return result;
}

/// Returns the largest difference, divided by the largest value.
double difference(const Tensor& got, const Tensor& expected) {
  const Tensor reference = expected.to(torch::kDouble);
  const double scale = reference.abs().max().item<double>();
  const Tensor worst = (got.to(torch::kDouble) - reference).abs().max();
  return worst.item<double>() / std::max(scale, 1e-6);
}

std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

class DdpAndPyTorch : public testing::TestWithParam<const char*> {
 protected:
  /// Returns the tensors that the script wrote to `name`.
  Tensors read_result(const std::string& name) const {
    return read(folder_.path(name));
  }
  /// Returns the results by rank.
  std::vector<Tensors> train_on_ranks(const Scenario& scenario,
                                      const std::string& optimizer,
                                      const std::string& backend) const;
  void compare(const Scenario& scenario, const std::string& optimizer,
               const std::string& backend);

  const TemporaryFolder folder_;
};

std::vector<Tensors> DdpAndPyTorch::train_on_ranks(
    const Scenario& scenario, const std::string& optimizer,
    const std::string& backend) const {
  const NamedTensors initial =
      read_safetensors(folder_.path(scenario.name + ".initial")).tensors;
  const Tensors batches = read_result("batches");
  std::vector<Tensors> results(kRanks);
  const auto task = [&](ProcessGroup world) {
    results[world.rank()] =
        trained(scenario, world, optimizer, initial, batches);
  };
  EXPECT_EQ(testing_ddp::failure_of(kRanks, backend, task), "");
  return results;
}

void DdpAndPyTorch::compare(const Scenario& scenario,
                            const std::string& optimizer,
                            const std::string& backend) {
  const auto got = train_on_ranks(scenario, optimizer, backend);
  const Tensors initial = read_result(scenario.name + ".initial");
  double worst = 0;
  std::string where = "nothing";
  for (int rank = 0; rank < kRanks; ++rank) {
    const Tensors expected =
        read_result(fmt::format("{}.{}.{}", scenario.name, optimizer, rank));
    // Both must define the same gradients.
    ASSERT_EQ(names_of(got[rank]), names_of(expected));
    for (const auto& [name, tensor] : got[rank]) {
      const bool is_gradient = name.starts_with(kGradient);
      const bool is_buffer = name.find("norm.") != std::string::npos;
      if (!is_gradient) EXPECT_TRUE(tensor.equal(got[0].at(name))) << name;
      if (name.starts_with("never.")) {
        EXPECT_TRUE(tensor.equal(initial.at(name))) << name;
        EXPECT_EQ(got[rank].count(kGradient + name), 0) << name;
      }
      if (is_buffer && !scenario.has_same_buffers) continue;
      // Gradients become small, and only those of the last step are compared.
      const double amount =
          difference(tensor, expected.at(name)) / (is_gradient ? 10 : 1);
      // A NaN is the worst possible difference.
      if (amount <= worst || std::isnan(worst)) continue;
      worst = amount;
      where = fmt::format("{} of rank {}", name, rank);
    }
  }
  EXPECT_LE(worst, optimizer == "sgd" ? kTolerance : scenario.adamw_tolerance)
      << where;
  const auto what = fmt::format("{}_{}_{}", scenario.name, optimizer, backend);
  const auto figure = fmt::format("{:.1e}", worst);
  RecordProperty(what, figure);
  std::cout << "[parity] " << what << ": " << figure << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, DdpAndPyTorch,
                         testing::Values("plain", "accumulation",
                                         "partial_graphs", "join",
                                         "comm_hooks"),
                         [](const auto& info) { return info.param; });

TEST_P(DdpAndPyTorch, AgreeAfterTenSteps) {
  torch::set_num_threads(1);
  const auto scenarios = scenarios_of(GetParam());
  std::vector<std::string> arguments{folder_.path()};
  for (const Scenario& scenario : scenarios) {
    arguments.push_back(scenario.name);
  }
  const std::string printed = run_python_file(
      LOCKSTEP_SOURCE_DIR "/tests/parity/pytorch_ddp.py", arguments);
  if (printed.starts_with("missing")) GTEST_SKIP() << printed;
  for (const Scenario& scenario : scenarios) {
    for (const std::string optimizer : {"sgd", "adamw"}) {
      for (const std::string backend : {"shm", "tcp"}) {
        SCOPED_TRACE(scenario.name + ", " + optimizer + ", " + backend);
        compare(scenario, optimizer, backend);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
