// The simulated accelerator: it has the bits of the CPU, and shows what a GPU
// would only show now and then.
// Tier: full. Its death tests start the program again.
#include "tests/accelerator/sim/accelerator.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::sim {
namespace {

using torch::Tensor;

c10::Device sim(int index) {
  return {kSim, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream other_stream(int index = 0) {
  return c10::impl::VirtualGuardImpl(kSim).getStreamFromGlobalPool(sim(index));
}

void synchronize(int index = 0) {
  c10::impl::VirtualGuardImpl(kSim).synchronizeDevice(
      static_cast<c10::DeviceIndex>(index));
}

/// Takes long enough that what does not wait for it comes first.
Tensor long_work(int index = 0) {
  const Tensor a = torch::full({256, 256}, 0.01, sim(index));
  Tensor product = a;
  for (int i = 0; i < 200; ++i) product = product.matmul(a).mul_(0.4);
  return product;
}

class SimulatedAccelerator : public testing::Test {
 protected:
  void SetUp() override { set_faults({}); }
  void TearDown() override { set_faults({}); }
};

/// Trains `net` on `device` for some steps. Returns its parameters.
template <class Net>
std::vector<Tensor> trained(Net net, Tensor x, Tensor y, c10::Device device) {
  net->to(device);
  x = x.to(device);
  y = y.to(device);
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    torch::cross_entropy_loss(net->forward(x), y).backward();
    sgd.step();
  }
  std::vector<Tensor> result;
  for (const Tensor& p : net->parameters()) result.push_back(p.cpu());
  return result;
}

template <class MakeNet>
void expect_same_bits(const MakeNet& make_net, const Tensor& x,
                      const Tensor& y) {
  torch::manual_seed(1);
  const auto expected = trained(make_net(), x, y, c10::Device(at::kCPU));
  torch::manual_seed(1);
  const auto found = trained(make_net(), x, y, sim(1));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << "parameter " << i;
  }
}

TEST_F(SimulatedAccelerator, TrainsAPerceptronWithTheBitsOfTheCpu) {
  expect_same_bits(
      [] {
        return torch::nn::Sequential(
            torch::nn::Linear(20, 32), torch::nn::ReLU(),
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
            torch::nn::GELU(), torch::nn::Linear(32, 5));
      },
      torch::randn({16, 20}), torch::randint(5, {16}));
}

TEST_F(SimulatedAccelerator, TrainsAConvolutionWithTheBitsOfTheCpu) {
  expect_same_bits(
      [] {
        return torch::nn::Sequential(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
            torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
            torch::nn::MaxPool2d(2), torch::nn::Flatten(),
            torch::nn::Linear(8 * 4 * 4, 5));
      },
      torch::randn({4, 3, 8, 8}), torch::randint(5, {4}));
}

TEST_F(SimulatedAccelerator, DrawsTheNumbersOfTheCpu) {
  torch::manual_seed(7);
  const Tensor expected = torch::randn({100});
  const Tensor more = torch::rand({10});
  at::Generator generator = at::globalContext().defaultGenerator(sim(2));
  generator.set_current_seed(7);
  const Tensor found = torch::randn({100}, sim(2));
  EXPECT_TRUE(torch::equal(found.cpu(), expected));
  EXPECT_TRUE(torch::equal(torch::rand({10}, sim(2)).cpu(), more));
}

TEST_F(SimulatedAccelerator, HasMemoryThatTheHostCanNotTouch) {
  const Tensor tensor = torch::ones({4}, sim(0));
  EXPECT_DEATH(
      {
        volatile float value = *tensor.data_ptr<float>();
        (void)value;
      },
      "");
}

TEST_F(SimulatedAccelerator, HasNewMemoryFullOfNaN) {
  const Tensor tensor = torch::empty({100}, sim(0));
  EXPECT_TRUE(tensor.isnan().all().item<bool>());
}

TEST_F(SimulatedAccelerator, ShowsAMissingWaitBetweenStreams) {
  const Tensor result = long_work();
  const c10::Stream stream = other_stream();
  Tensor seen;
  {
    const c10::StreamGuard guard(stream);
    seen = result.clone();
    c10::impl::VirtualGuardImpl(kSim).synchronizeStream(stream);
  }
  synchronize();
  EXPECT_FALSE(torch::equal(seen, result));
}

TEST_F(SimulatedAccelerator, KeepsTheOrderOfEvents) {
  const Tensor result = long_work();
  c10::Event event(kSim);
  event.record(c10::impl::VirtualGuardImpl(kSim).getStream(sim(0)));
  const c10::Stream stream = other_stream();
  Tensor seen;
  {
    const c10::StreamGuard guard(stream);
    event.block(stream);
    seen = result.clone();
  }
  synchronize();
  EXPECT_TRUE(torch::equal(seen, result));
}

/// Frees a tensor that another stream reads later. Returns what that reads.
Tensor read_after_free(bool is_recorded) {
  const c10::Stream stream = other_stream();
  Tensor tensor = torch::ones({1000}, sim(0));
  synchronize();
  Tensor seen;
  {
    const c10::StreamGuard guard(stream);
    long_work();
    seen = tensor.clone();
  }
  if (is_recorded) tensor.record_stream(stream);
  tensor = Tensor();
  synchronize();
  return seen.cpu();
}

TEST_F(SimulatedAccelerator, ShowsAMissingRecordStream) {
  EXPECT_TRUE(read_after_free(false).isnan().any().item<bool>());
  EXPECT_TRUE(read_after_free(true).eq(1).all().item<bool>());
}

TEST_F(SimulatedAccelerator, ReportsAFailedKernelAtTheNextSynchronization) {
  EXPECT_EXIT(
      {
        Faults faults;
        faults.failing_kernel = 1;
        set_faults(faults);
        const Tensor tensor = torch::ones({4}, sim(3));  // no error yet
        try {
          synchronize(3);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s", error.what());
          std::_Exit(0);
        }
        std::_Exit(1);
      },
      testing::ExitedWithCode(0), "a kernel failed");
}

TEST_F(SimulatedAccelerator, FailsTheChosenAllocation) {
  Faults faults;
  faults.failing_allocation = 2;
  set_faults(faults);
  const Tensor first = torch::empty({4}, sim(0));
  EXPECT_THROW(torch::empty({4}, sim(0)), c10::OutOfMemoryError);
  const Tensor third = torch::empty({4}, sim(0));
}

TEST_F(SimulatedAccelerator, CorruptsOrDropsCopiesBetweenDevices) {
  const Tensor source = torch::ones({100}, sim(1));
  EXPECT_TRUE(source.to(sim(0)).eq(1).all().item<bool>());
  Faults faults;
  faults.corrupt_copy = [](int from, int to, std::byte* bytes, size_t) {
    if (from == 1 && to == 0) bytes[5] ^= std::byte{0xff};
  };
  set_faults(faults);
  EXPECT_EQ(source.to(sim(0)).eq(1).sum().item<int64_t>(), 99);
  EXPECT_EQ(source.to(sim(2)).eq(1).sum().item<int64_t>(), 100);
  faults = {};
  faults.drop_copy = [](int, int) { return true; };
  set_faults(faults);
  EXPECT_TRUE(source.to(sim(0)).isnan().all().item<bool>());
}

TEST_F(SimulatedAccelerator, CopiesToTheHostWhenItSaysSo) {
  const Tensor result = long_work();
  const Tensor host = torch::zeros({256, 256});
  host.copy_(result);
  EXPECT_TRUE(torch::equal(host, result.cpu()));
  EXPECT_TRUE((host > 0).all().item<bool>());
}

/// Returns the memory of simulated devices that this process has, in KiB.
int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stoll(line.substr(9));
  }
  throw std::runtime_error("/proc/self/status has no RssShmem");
}

TEST_F(SimulatedAccelerator, GivesUnusedMemoryBack) {
  constexpr int64_t kKib = 64 * 1024;
  at::getDeviceAllocator(kSim)->emptyCache();
  const Tensor small = torch::empty({1}, sim(0));  // the next is at no page
  const int64_t before = resident_kib();
  {
    const Tensor large = torch::zeros({kKib * 1024 / 4}, sim(0));
    synchronize();
    EXPECT_GE(resident_kib() - before, kKib);
  }
  at::getDeviceAllocator(kSim)->emptyCache();
  EXPECT_LE(resident_kib() - before, kKib / 16);
}

TEST_F(SimulatedAccelerator, CountsItsMemory) {
  synchronize();
  const auto before = memory_use(0).bytes;
  reset_peaks();
  {
    const Tensor tensor = torch::empty({1024}, sim(0));
    EXPECT_EQ(memory_use(0).bytes - before, 4096);
  }
  EXPECT_EQ(memory_use(0).bytes, before);
  EXPECT_EQ(memory_use(0).peak_bytes - before, 4096);
}

}  // namespace
}  // namespace lockstep::sim
