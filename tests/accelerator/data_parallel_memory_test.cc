// DataParallel puts the same on each device, and leaves nothing behind.
// Tier: full. It takes seconds.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/device/memory.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/functional.h"
#include "tests/accelerator/nets.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace data_parallel_memory {

using torch::Tensor;

constexpr int64_t kWidth = 64, kLayers = 40, kSamples = 64;

/// Many layers of one size.
struct DeepNetImpl : torch::nn::Cloneable<DeepNetImpl> {
  DeepNetImpl() { DeepNetImpl::reset(); }
  void reset() override {
    layers = register_module("layers", torch::nn::Sequential());
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
      layers->push_back(torch::nn::ReLU());
    }
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(DeepNet);

std::vector<int64_t> live_bytes() {
  std::vector<int64_t> bytes;
  for (int i = 0; i < installed().devices; ++i) {
    c10::impl::VirtualGuardImpl(kSim).synchronizeDevice(
        static_cast<c10::DeviceIndex>(i));
    bytes.push_back(memory_use(i).bytes);
  }
  return bytes;
}

/// Returns the highest number of bytes on each of `devices`, from the second
/// step of a `Net` on, with an optimizer that `make` returns. Also measures the
/// first step and what precedes it if `from_start`.
template <class Net = DeepNet, class Make>
std::vector<int64_t> peaks(const std::vector<Device>& devices, const Make& make,
                           bool in_loop, bool from_start = false) {
  torch::manual_seed(3);
  Net net;
  reset_peak_memory();
  lockstep::to(*net, devices.front());
  const DataParallel model(
      net, devices,
      DataParallelOptions().bad_links(BadLinks::kIgnore).divide_state(true));
  const auto optimizer = make(net->parameters());
  for (int step = 0; step < 4; ++step) {
    const Tensor x = torch::randn({kSamples, kWidth});
    const Tensor y = torch::randint(8, {kSamples});
    if (step == 1 && !from_start) reset_peak_memory();
    if (in_loop) {
      const Tensor output = model->forward(x);
      class_loss(output, y.to(output.device())).backward();
      optimizer->step();
      optimizer->zero_grad();
    } else {
      model->train_step(x, y, &class_loss, *optimizer);
    }
  }
  std::vector<int64_t> bytes;
  for (const Device& device : devices) {
    const MemoryStats stats = memory_stats(device);
    EXPECT_EQ(stats.peak_bytes, memory_use(device.index).peak_bytes);
    EXPECT_EQ(stats.live_bytes, memory_use(device.index).bytes);
    bytes.push_back(stats.peak_bytes);
  }
  return bytes;
}

std::unique_ptr<torch::optim::Optimizer> plain_sgd(
    std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.01);
}
std::unique_ptr<torch::optim::Optimizer> momentum_sgd(
    std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.01).momentum(0.9));
}

std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), 0.01);
}

double ratio(const char* name, const std::vector<int64_t>& bytes) {
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  const double value = static_cast<double>(*most) / static_cast<double>(*least);
  std::string list;
  for (const int64_t each : bytes) list += " " + std::to_string(each);
  std::printf("[ PEAK     ] %-24s max/min %.3f, bytes%s\n", name, value,
              list.c_str());
  return value;
}

TEST(DataParallelMemory, TheFirstDeviceHoldsNoMoreThanTheOthers) {
  for (const char* list : {"2xsim", "3xsim", "4xsim"}) {
    EXPECT_LE(ratio(list, peaks(devices_of(list), plain_sgd, false)), 1.05);
    EXPECT_LE(ratio(list, peaks(devices_of(list), plain_sgd, true)), 1.05);
  }
}

TEST(DataParallelMemory, TheStateOfTheOptimizerIsDivided) {
  for (const char* list : {"2xsim", "3xsim", "4xsim"}) {
    const auto devices = devices_of(list);
    const std::string name = list;
    EXPECT_LE(ratio((name + " momentum").c_str(),
                    peaks(devices, momentum_sgd, false)),
              1.05);
    EXPECT_LE(ratio((name + " AdamW").c_str(), peaks(devices, adamw, false)),
              1.05);
    EXPECT_LE(ratio((name + " AdamW, one layer").c_str(),
                    peaks<UnevenNet>(devices, adamw, false)),
              1.05);
  }
}

// Also when the first device makes the replicas, and before it has gradients.
TEST(DataParallelMemory, TheStateIsNeverOnTheFirstDeviceAlone) {
  const auto one =
      peaks(devices_of("sim:0"), adamw, /*in_loop=*/false, /*from_start=*/true);
  const auto four =
      peaks(devices_of("4xsim"), adamw, /*in_loop=*/false, /*from_start=*/true);
  int64_t state = 0;
  for (const Tensor& parameter : DeepNet()->parameters()) {
    state += 2 * static_cast<int64_t>(parameter.nbytes());
  }
  EXPECT_LT(four[0], one[0] - state / 2);
}

TEST(DataParallelMemory, NothingIsLeftAtTheEnd) {
  peaks(devices_of("4xsim"), plain_sgd, false);
  const auto before = live_bytes();
  peaks(devices_of("4xsim"), momentum_sgd, false);
  peaks(devices_of("3xsim"), momentum_sgd, true);
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace data_parallel_memory
}  // namespace lockstep::sim
