#include <string>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "lockstep/device/cuda/cuda.h"
#include "lockstep/device/device.h"
#include "lockstep/device/random.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/device/tensor_device.h"
#include "lockstep/device/worker.h"

namespace lockstep {
namespace {

TEST(CudaDevices, AreAllFoundByAuto) {
  const int count = cuda_device_count();
  if (count == 0) GTEST_SKIP() << "this machine has no GPU";
  EXPECT_EQ(devices("auto").size(), static_cast<size_t>(count));
  EXPECT_EQ(devices("cuda"), devices("auto"));
  EXPECT_EQ(devices(std::to_string(count) + "xcuda"), devices("auto"));
  EXPECT_EQ(devices("1xcuda"), devices("cuda:0"));
  EXPECT_EQ(devices("1"), devices("cuda:0"));
  EXPECT_EQ(devices("cuda:0")[0].name(), "cuda:0");
}

class CudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  }
  const Device gpu_{c10::kCUDA, 0, 0};
};

TEST_F(CudaDevice, HasANameAndMemory) {
  const auto properties = cuda::properties(0);
  EXPECT_NE(properties.name[0], '\0');
  EXPECT_GT(properties.memory_bytes, 0);
  EXPECT_GT(properties.multiprocessors, 0);
}

TEST_F(CudaDevice, OrdersAWorkersStreamAfterTheCallersAndBefore) {
  Worker worker(gpu_);
  auto x = torch::zeros({1 << 22}, torch::kCUDA);
  for (int i = 0; i < 50; ++i) {
    x.add_(1);
    worker.start([&x] { x.add_(1); });
    worker.wait();
  }
  EXPECT_EQ(x.min().item<float>(), 100.0f);
}

TEST_F(CudaDevice, RunsInTheCallersThreadInAWorkersStream) {
  Worker worker(gpu_);
  auto x = torch::zeros({1 << 22}, torch::kCUDA);
  for (int i = 0; i < 50; ++i) {
    x.add_(1);
    worker.run_here([&] {
      EXPECT_EQ(current_device(), gpu_);
      x.add_(1);
    });
    worker.start([&x] { x.add_(1); });
    worker.wait();
  }
  EXPECT_EQ(x.min().item<float>(), 150.0f);
}

TEST_F(CudaDevice, GivesAConvolutionTheSameGradientEachTime) {
  cuda::fix_order_of_sums();  // as the first wrapper on a GPU does
  Worker worker(gpu_);
  worker.start([] {
    const auto on_gpu = torch::TensorOptions(torch::kCUDA);
    const auto x = torch::rand({64, 3, 32, 32}, on_gpu);
    auto weight = torch::rand({32, 3, 3, 3}, on_gpu).requires_grad_();
    const auto gradient = [&] {
      const auto y = torch::conv2d(x, weight, {}, 1, 1);
      return torch::autograd::grad({y.square().sum()}, {weight})[0];
    };
    const auto first = gradient();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(torch::equal(gradient(), first)) << i;
    }
  });
  worker.wait();
}

TEST_F(CudaDevice, CountsItsMemory) {
  const auto x = torch::ones({1 << 20}, torch::kCUDA);
  EXPECT_EQ(device_of(x), gpu_);
  EXPECT_GE(memory_stats(gpu_).live_bytes, 4 << 20);
  reset_peak_memory();
  EXPECT_EQ(memory_stats(gpu_).peak_bytes, memory_stats(gpu_).live_bytes);
}

TEST_F(CudaDevice, GivesMemoryToWhatIsUsedOfATensor) {
  constexpr int64_t kElements = 64 << 20;
  const int64_t before = memory_stats(gpu_).live_bytes;
  const auto whole = torch::empty({kElements}, torch::kCUDA);
  {
    const auto part = reserved_like(whole, {{.begin = 0, .end = 1 << 20}}, 7);
    EXPECT_EQ(reserved_number(part), 7);
    EXPECT_LT(memory_stats(gpu_).live_bytes - before - 4 * kElements, 8 << 20);
    EXPECT_EQ(part.narrow(0, 0, 1 << 18).abs().max().item<float>(), 0);
    auto used = part.narrow(0, 0, 1 << 18);
    used.fill_(3);
    auto rest = part.narrow(0, 1 << 20, kElements - (1 << 20));
    rest.fill_(5);
    EXPECT_TRUE(used.eq(3).all().item<bool>());
  }
  EXPECT_EQ(memory_stats(gpu_).live_bytes - before, 4 * kElements);
}

TEST_F(CudaDevice, DrawsTheSameNumbersInTheSameScope) {
  const auto draw = [](uint64_t shard) {
    torch::ones({1}, torch::kCUDA);
    const RandomScope scope(1, 2, shard);
    return torch::dropout(torch::ones({100}, torch::kCUDA), 0.5, true);
  };
  EXPECT_TRUE(torch::equal(draw(0), draw(0)));
  EXPECT_FALSE(torch::equal(draw(0), draw(1)));
}

}  // namespace
}  // namespace lockstep
