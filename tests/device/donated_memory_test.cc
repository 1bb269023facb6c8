#include "lockstep/device/donated_memory.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/device/memory.h"

namespace lockstep::donated_memory_test {
namespace {

constexpr int64_t kTensorBytes = 3 << 20;

/// Memory like that of a segment: who holds it keeps it.
class Lender {
 public:
  explicit Lender(int tensors)
      : sizes_(static_cast<size_t>(tensors), kTensorBytes),
        bytes_(DonatedMemory::bytes_for(sizes_)),
        owner_(std::aligned_alloc(64, bytes_), &std::free) {}

  /// After it, only the allocator and tensors hold the memory.
  std::unique_ptr<DonatedMemory> donate(const Device& device) {
    const std::span<std::byte> memory(static_cast<std::byte*>(owner_.get()),
                                      bytes_);
    auto donated =
        std::make_unique<DonatedMemory>(device, memory, sizes_, owner_);
    begin_ = static_cast<const std::byte*>(owner_.get());
    left_ = owner_;
    owner_.reset();
    return donated;
  }
  bool is_held() const { return !left_.expired(); }
  bool has(const torch::Tensor& tensor) const {
    const auto* data = static_cast<const std::byte*>(tensor.data_ptr());
    return is_held() && data >= begin_ && data < begin_ + bytes_;
  }

 private:
  std::vector<int64_t> sizes_;
  size_t bytes_;
  std::shared_ptr<void> owner_;
  std::weak_ptr<void> left_;
  const std::byte* begin_ = nullptr;
};

class Donated : public testing::Test {
 protected:
  void SetUp() override { install_accounting_allocator(); }
};

// Each test has a slice of its own.
Device slice(int index) { return {c10::kCPU, 60 + index, 128}; }

torch::Tensor new_tensor() {
  return torch::empty({kTensorBytes}, torch::kUInt8);
}

/// A tensor that a backward makes.
torch::Tensor tensor_on(const Device& device) {
  torch::Tensor made;
  const torch::Tensor leaf = torch::zeros({1}).requires_grad_();
  leaf.register_hook([&](const torch::Tensor& gradient) {
    const MemoryScope scope(device);
    made = new_tensor();
    return gradient;
  });
  (leaf * 1).backward();
  return made;
}

TEST_F(Donated, MemoryTakesTheTensorsOfItsSize) {
  Lender lender(2);
  // One of the account's own is free, too, and was used last.
  tensor_on(slice(1)).reset();
  const auto donated = lender.donate(slice(1));
  const auto first = tensor_on(slice(1));
  const auto second = tensor_on(slice(1));
  EXPECT_TRUE(lender.has(first));
  EXPECT_TRUE(lender.has(second));
  EXPECT_FALSE(lender.has(tensor_on(slice(1))));
}

TEST_F(Donated, MemoryIsForBackwardPassesAlone) {
  Lender lender(1);
  const auto donated = lender.donate(slice(9));
  {
    const MemoryScope scope(slice(9));
    EXPECT_FALSE(lender.has(new_tensor()));
  }
  EXPECT_TRUE(lender.has(tensor_on(slice(9))));
}

TEST_F(Donated, MemoryGoesWithWhatDonatedIt) {
  Lender lender(2);
  auto donated = lender.donate(slice(2));
  tensor_on(slice(2)).reset();
  EXPECT_GE(memory_stats(slice(2)).cached_bytes, 2 * kTensorBytes);
  donated.reset();
  EXPECT_FALSE(lender.is_held());
  EXPECT_EQ(memory_stats(slice(2)).cached_bytes, 0);
  EXPECT_FALSE(lender.has(tensor_on(slice(2))));
}

TEST_F(Donated, MemoryStaysUntilTheLastTensorInItIsFreed) {
  Lender lender(2);
  auto donated = lender.donate(slice(3));
  auto first = tensor_on(slice(3));
  auto second = tensor_on(slice(3));
  donated.reset();
  first.fill_(1);
  second.fill_(2);
  first.reset();
  EXPECT_TRUE(lender.is_held());
  EXPECT_EQ(second.max().item<int>(), 2);
  second.reset();
  EXPECT_FALSE(lender.is_held());
  EXPECT_EQ(memory_stats(slice(3)).live_bytes, 0);
}

TEST_F(Donated, BlocksStayWhenTheCacheIsReleased) {
  Lender lender(1);
  const auto donated = lender.donate(slice(4));
  tensor_on(slice(4)).reset();
  release_cached_memory();
  EXPECT_TRUE(lender.has(tensor_on(slice(4))));
}

TEST_F(Donated, BlocksAreNotPushedOutByOthers) {
  Lender lender(1);
  const auto donated = lender.donate(slice(5));
  {
    // Far more than the cache may keep.
    std::vector<torch::Tensor> many;
    for (int i = 0; i < 60; ++i) many.push_back(tensor_on(slice(5)));
    EXPECT_TRUE(lender.has(many.front()));
  }
  const MemoryScope scope(slice(5));
  for (int64_t size = 1 << 20; size <= 100 << 20; size += 1 << 20) {
    const auto x = torch::empty({size}, torch::kUInt8);
  }
  EXPECT_TRUE(lender.has(tensor_on(slice(5))));
}

TEST_F(Donated, MemoryOfTwoIsToldApart) {
  Lender one(1), other(1);
  auto from_one = one.donate(slice(6));
  const auto from_other = other.donate(slice(6));
  from_one.reset();
  EXPECT_FALSE(one.is_held());
  EXPECT_TRUE(other.has(tensor_on(slice(6))));
}

TEST_F(Donated, MemoryHasRoomForATemporaryOfEachSize) {
  EXPECT_EQ(DonatedMemory::tensors_of_backward({4096, 64, 4096}),
            (std::vector<int64_t>{4096, 64, 4096, 64, 4096}));
}

TEST_F(Donated, MemoryThatIsTooSmallIsRefusedWhole) {
  std::array<std::byte, 64> memory{};
  const auto owner = std::make_shared<int>(0);
  const std::vector<int64_t> sizes{1, kTensorBytes};
  EXPECT_THROW(DonatedMemory(slice(7), memory, sizes, owner), DeviceError);
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_EQ(memory_stats(slice(7)).cached_bytes, 0);
}

TEST_F(Donated, MemoryComesAndGoesUnderTheTensorsOfOtherThreads) {
  constexpr int kRounds = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 4 * kRounds; ++i) tensor_on(slice(8))[0] = 1;
    });
  }
  std::vector<Lender> lenders;
  for (int i = 0; i < kRounds; ++i) {
    lenders.emplace_back(2);
    const auto donated = lenders.back().donate(slice(8));
  }
  for (auto& thread : threads) thread.join();
  for (const auto& lender : lenders) EXPECT_FALSE(lender.is_held());
  EXPECT_EQ(memory_stats(slice(8)).live_bytes, 0);
}

}  // namespace
}  // namespace lockstep::donated_memory_test
