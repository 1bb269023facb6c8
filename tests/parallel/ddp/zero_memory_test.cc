// The memory of ranks with a part of the optimizer's state and, at stage 2, of
// the gradients. Each rank is a slice, whose memory is counted.
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::zero_memory_test {
namespace {

using testing_ddp::failure_of;
using torch::Tensor;

/// Layers without activations to speak of.
struct DeepNetImpl : torch::nn::Cloneable<DeepNetImpl> {
  static constexpr int64_t kWidth = 512;
  static constexpr int64_t kLayers = 64;
  void reset() override {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(
          torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
  }
  DeepNetImpl() { reset(); }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers)
      x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers;
};

/// Bytes for each parameter that a rank's account has at the most in a step.
double bytes_per_parameter(const ProcessGroup& world, ZeroStage zero) {
  const Device device{
      .type = c10::kCPU, .index = world.rank(), .slices = world.size()};
  const MemoryScope scope(device);
  const auto net = std::make_shared<DeepNetImpl>();
  OverRanks model(
      net, std::vector{device},
      DataParallelOptions().process_group(world).intra_op_threads(1).zero(
          zero));
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  // Not of making the replica, which copies the parameters at first.
  world.barrier();
  if (world.rank() == 0) reset_peak_memory();
  world.barrier();
  for (int step = 0; step < 2; ++step) {
    model->train_step(
        torch::ones({1, DeepNetImpl::kWidth}), torch::zeros({1}),
        [](const Tensor& output, const Tensor&) { return output.mean(); },
        optimizer);
  }
  return static_cast<double>(memory_stats(device).peak_bytes) /
         static_cast<double>(DeepNetImpl::kLayers * DeepNetImpl::kWidth *
                             DeepNetImpl::kWidth);
}

TEST(ZeroMemory, IsThatOfTheFormula) {
  install_accounting_allocator();
  for (const int ranks : {2, 4}) {
    for (const ZeroStage zero : {ZeroStage::kNone, ZeroStage::kOptimizerState,
                                 ZeroStage::kGradients}) {
      const double n = ranks;
      const double formula = zero == ZeroStage::kNone             ? 16
                             : zero == ZeroStage::kOptimizerState ? 8 + 8 / n
                                                                  : 4 + 12 / n;
      EXPECT_EQ(failure_of(ranks, "tcp",
                           [&](const ProcessGroup& world) {
                             const double bytes =
                                 bytes_per_parameter(world, zero);
                             TORCH_CHECK(
                                 bytes > 0.9 * formula && bytes < 1.1 * formula,
                                 bytes, " bytes a parameter");
                           }),
                "")
          << "stage " << static_cast<int>(zero) << ", " << ranks
          << " ranks, formula " << formula;
    }
  }
}

}  // namespace
}  // namespace lockstep::zero_memory_test
