#include "lockstep/device/cuda/sparse_gpu_memory.h"

#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int64_t kPage = 64 << 10;  // of the driver that stands in

class SparseMemory : public ::testing::Test {
 protected:
  SparseMemory() : library_(LOCKSTEP_BINARY_DIR "/tests/libfake_cuda.so") {
    driver_ = CudaDriver::open(library_);
    void* opened = ::dlopen(library_.c_str(), RTLD_NOW);
    limit_ =
        reinterpret_cast<void (*)(long)>(::dlsym(opened, "fake_cuda_limit"));
    left_ = reinterpret_cast<size_t (*)()>(::dlsym(opened, "fake_cuda_left"));
  }
  ~SparseMemory() override { limit_(-1); }

  std::string library_;
  CudaDriver driver_;
  void (*limit_)(long) = nullptr;
  size_t (*left_)() = nullptr;
};

TEST_F(SparseMemory, HasMemoryWhereItIsUsed) {
  const std::vector<ByteRange> used = {
      {.begin = 100, .end = kPage + 4},
      {.begin = 4 * kPage + 8, .end = 4 * kPage + 16}};
  {
    const SparseGpuMemory memory(driver_, 3, 10 * kPage - 12, used);
    // Three pages that are used, and one for all others.
    EXPECT_EQ(memory.memory_bytes(), 4 * kPage);
    EXPECT_EQ(SparseGpuMemory::live_bytes(3), 4 * kPage);
    auto* data = static_cast<char*>(memory.data());
    for (const ByteRange& range : used) {
      std::memset(data + range.begin, 7,
                  static_cast<size_t>(range.end - range.begin));
    }
    // What is written elsewhere is lost, and changes nothing that is used.
    std::memset(data + 2 * kPage, 1, 2 * kPage);
    std::memset(data + 5 * kPage, 2, 5 * kPage - 12);
    for (const ByteRange& range : used) {
      for (int64_t at = range.begin; at < range.end; ++at) {
        ASSERT_EQ(data[at], 7) << at;
      }
    }
    EXPECT_EQ(data[2 * kPage], 2);
  }
  EXPECT_EQ(left_(), 0u);
  EXPECT_EQ(SparseGpuMemory::live_bytes(3), 0);
}

TEST_F(SparseMemory, OfOneThatIsUsedWholeSharesNothing) {
  const std::vector<ByteRange> used = {{.begin = 0, .end = 3 * kPage}};
  const SparseGpuMemory memory(driver_, 0, 3 * kPage, used);
  EXPECT_EQ(memory.memory_bytes(), 3 * kPage);
}

TEST_F(SparseMemory, ThatIsNotThereLeavesNothingBehind) {
  const std::vector<ByteRange> used = {{.begin = 0, .end = kPage},
                                       {.begin = 2 * kPage, .end = 4 * kPage}};
  for (const long pages : {0, 1, 2, 3}) {
    limit_(pages * kPage);
    try {
      const SparseGpuMemory memory(driver_, 0, 8 * kPage, used);
      FAIL() << pages << " pages are enough";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_NE(std::string(error.what()).find("out of memory"),
                std::string::npos)
          << error.what();
    }
    EXPECT_EQ(left_(), 0u);
  }
  EXPECT_EQ(SparseGpuMemory::live_bytes(0), 0);
}

}  // namespace
}  // namespace lockstep
