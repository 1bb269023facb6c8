#include "lockstep/device/memory.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/device/block_cache.h"
#include "lockstep/device/tensor_device.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

// Each test has a slice of its own, so that none sees another's account.
Device slice(int index) { return {c10::kCPU, index, 32}; }

class Memory : public ::testing::Test {
 protected:
  void SetUp() override { install_accounting_allocator(); }
};

torch::Tensor bytes_on(const Device& device, int64_t count) {
  const MemoryScope scope(device);
  return torch::empty({count}, torch::kUInt8);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST_F(Memory, IsInstalledOnce) {
  install_accounting_allocator();
  EXPECT_TRUE(has_accounting_allocator());
}

TEST_F(Memory, ChargesTheSliceOfTheScopeAlone) {
  const int64_t host = host_memory_stats().live_bytes;
  const auto x = bytes_on(slice(1), 1000);
  EXPECT_EQ(memory_stats(slice(1)).live_bytes, 1024);
  EXPECT_EQ(memory_stats(slice(2)).live_bytes, 0);
  EXPECT_EQ(host_memory_stats().live_bytes, host);
}

TEST_F(Memory, ChargesTheHostOutsideAnyScope) {
  const int64_t host = host_memory_stats().live_bytes;
  const auto x = torch::empty({100}, torch::kFloat);
  EXPECT_EQ(host_memory_stats().live_bytes, host + 448);
}

TEST_F(Memory, ReturnsToTheOuterScope) {
  const MemoryScope outer(slice(3));
  const auto inner = bytes_on(slice(4), 64);
  const auto x = torch::empty({64}, torch::kUInt8);
  EXPECT_EQ(memory_stats(slice(3)).live_bytes, 64);
  EXPECT_EQ(memory_stats(slice(4)).live_bytes, 64);
}

TEST_F(Memory, CreditsTheAccountItCameFromOnWhateverThread) {
  auto x = bytes_on(slice(5), 4096);
  std::thread([moved = std::move(x)]() mutable {
    const MemoryScope scope(slice(6));
    moved.reset();
  }).join();
  EXPECT_EQ(memory_stats(slice(5)).live_bytes, 0);
  EXPECT_EQ(memory_stats(slice(6)).live_bytes, 0);
}

TEST_F(Memory, KeepsThePeakUntilItIsReset) {
  auto x = bytes_on(slice(7), 1 << 20);
  { const auto y = bytes_on(slice(7), 3 << 20); }
  EXPECT_EQ(memory_stats(slice(7)).peak_bytes, 4 << 20);
  reset_peak_memory();
  EXPECT_EQ(memory_stats(slice(7)).peak_bytes, 1 << 20);
}

TEST_F(Memory, GivesAFreedBlockToTheNextOfItsSize) {
  auto x = bytes_on(slice(8), 5 << 20);
  const void* const data = x.data_ptr();
  x.reset();
  EXPECT_GE(memory_stats(slice(8)).cached_bytes, 5 << 20);
  x = bytes_on(slice(8), 5 << 20);
  EXPECT_EQ(x.data_ptr(), data);
  EXPECT_EQ(memory_stats(slice(8)).cached_bytes, 0);
}

TEST_F(Memory, GivesCachedBlocksBackWhenAsked) {
  { const auto x = bytes_on(slice(9), 5 << 20); }
  release_cached_memory();
  EXPECT_EQ(memory_stats(slice(9)).cached_bytes, 0);
}

TEST_F(Memory, CachesNoMoreThanAQuarterAboveThePeak) {
  constexpr int64_t kMax = 100 << 20;
  for (int64_t size = 1 << 20; size <= kMax; size += 1 << 20) {
    const auto x = bytes_on(slice(10), size);
  }
  EXPECT_LE(memory_stats(slice(10)).cached_bytes, kMax + kMax / 4 + (64 << 20));
  EXPECT_GE(memory_stats(slice(10)).cached_bytes, kMax);
}

TEST_F(Memory, DoesNotGrowOverAThousandStepsOfVaryingSize) {
  constexpr int64_t kLargest = 8 << 20;
  int64_t after_warm_up = 0;
  for (int step = 0; step < 1000; ++step) {
    const int64_t size = 1 + (step * int64_t{7919 * 1013}) % kLargest;
    auto x = bytes_on(slice(11), size);
    std::memset(x.data_ptr(), 1, static_cast<size_t>(size));
    const auto y = bytes_on(slice(11), size / 3 + 1);
    std::memset(y.data_ptr(), 2, static_cast<size_t>(size / 3 + 1));
    if (step == 200) after_warm_up = resident_bytes();
  }
  EXPECT_EQ(memory_stats(slice(11)).live_bytes, 0);
  EXPECT_LE(memory_stats(slice(11)).cached_bytes, (64 << 20) + 4 * kLargest);
  EXPECT_LE(resident_bytes(), after_warm_up + (40 << 20));
}

TEST_F(Memory, CountsExactlyWhileThreadsFreeEachOthersTensors) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  std::array<std::atomic<c10::TensorImpl*>, kThreads> slots{};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&slots, t] {
      const MemoryScope scope(slice(12 + t % 2));
      for (int i = 0; i < kRounds; ++i) {
        auto x = torch::empty({1 + i % 300}, torch::kDouble);
        auto* const mine = x.unsafeReleaseTensorImpl();
        auto* const other = slots[size_t(i + t) % kThreads].exchange(mine);
        if (other != nullptr) {
          c10::intrusive_ptr<c10::TensorImpl,
                             c10::UndefinedTensorImpl>::reclaim(other);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& slot : slots) {
    c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
        slot.exchange(nullptr));
  }
  for (const int index : {12, 13}) {
    EXPECT_EQ(memory_stats(slice(index)).live_bytes, 0);
    EXPECT_GE(memory_stats(slice(index)).peak_bytes, 64);
  }
}

TEST_F(Memory, AlignsEveryTensorTo64Bytes) {
  for (int64_t size = 1; size < (4 << 20); size = size * 3 / 2 + 1) {
    const auto x = bytes_on(slice(14), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64, 0u) << size;
  }
}

TEST_F(Memory, HoldsEmptyTensorsWithoutABlock) {
  const auto x = bytes_on(slice(15), 0);
  EXPECT_EQ(x.data_ptr(), nullptr);
  EXPECT_EQ(memory_stats(slice(15)).live_bytes, 0);
}

TEST_F(Memory, GrowsATensorInPlaceWithItsContents) {
  auto x = torch::arange(10);
  x.resize_({1000});
  EXPECT_EQ(x[9].item<int64_t>(), 9);
}

TEST_F(Memory, WorksThroughTheRawInterface) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  const int64_t before = host_memory_stats().live_bytes;
  void* const data = allocator->raw_allocate(100);
  EXPECT_EQ(host_memory_stats().live_bytes, before + 128);
  allocator->raw_deallocate(data);
  EXPECT_EQ(host_memory_stats().live_bytes, before);
}

TEST_F(Memory, SaysWhoAskedForHowMuchWhenThereIsNone) {
  expect_problem(
      error_of<DeviceError>([] { bytes_on(slice(16), int64_t{1} << 45); }),
      ErrorCode::kOutOfMemory, {"cpu:16", "35184372088832 bytes"});
  EXPECT_EQ(memory_stats(slice(16)).live_bytes, 0);
}

// The free memory of the machine is of no use to such a process.
TEST_F(Memory, NamesTheLimitThatAProcessHas) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const rlim_t bytes = rlim_t{100} << 30;
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = bytes;
        if (::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(3);
        try {
          bytes_on(slice(16), int64_t{1} << 40);
        } catch (const DeviceError& error) {
          std::fputs(error.what(), stderr);
          std::_Exit(0);
        }
        std::_Exit(4);
      },
      testing::ExitedWithCode(0),
      "got this process may have 100.0 GiB of addresses .ulimit -v., "
      ".*raise the limit");
}

TEST_F(Memory, RefusesASliceBeyondTheAccounts) {
  EXPECT_THROW(MemoryScope({c10::kCPU, kMaxSlices, 999}), DeviceError);
  EXPECT_THROW(memory_stats({c10::kCPU, -1, 1}), DeviceError);
}

TEST_F(Memory, AbortsWhenABlockIsOverwritten) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        install_accounting_allocator();
        auto x = torch::zeros({64}, torch::kUInt8);
        BlockHeader::of(x.data_ptr())->magic = 0;
        x.reset();
      },
      "overwritten in front of its data");
}

TEST_F(Memory, TellsTheSliceOfATensor) {
  const auto x = bytes_on(slice(17), 64);
  EXPECT_EQ(device_of(x), slice(17));
  EXPECT_EQ(device_of(x.slice(0, 8, 16)), slice(17));
}

TEST_F(Memory, TellsNoSliceOfMemoryThatIsNotASlices) {
  EXPECT_EQ(device_of(torch::empty({3})), std::nullopt);
  EXPECT_EQ(device_of(torch::Tensor()), std::nullopt);
  EXPECT_EQ(device_of(torch::empty({3}, torch::kMeta)), std::nullopt);
  EXPECT_EQ(device_of(bytes_on(slice(18), 0)), std::nullopt);
  float numbers[4] = {};
  EXPECT_EQ(device_of(torch::from_blob(numbers, {4})), std::nullopt);
  c10::DataPtr foreign = c10::GetDefaultCPUAllocator()->allocate(64);
  const auto y = torch::from_blob(foreign.get(), {8}, torch::kFloat);
  EXPECT_EQ(device_of(y), std::nullopt);
}

TEST(SizeClasses, WasteNoMoreThanAnEighth) {
  int last_index = -1;
  int64_t last_capacity = 0;
  for (int64_t bytes = 1; bytes < (int64_t{1} << 46); bytes += bytes / 50 + 1) {
    const SizeClass found = size_class_of(bytes);
    ASSERT_GE(found.capacity_bytes, bytes);
    ASSERT_LE(found.capacity_bytes, std::max(bytes + 64, bytes * 9 / 8 + 64));
    ASSERT_EQ(found.capacity_bytes % 64, 0);
    ASSERT_LT(found.index, kSizeClasses);
    ASSERT_GE(found.index, last_index);
    ASSERT_EQ(found.index == last_index, found.capacity_bytes == last_capacity);
    ASSERT_EQ(size_class_of(found.capacity_bytes).index, found.index);
    last_index = found.index;
    last_capacity = found.capacity_bytes;
  }
}

}  // namespace
}  // namespace lockstep
