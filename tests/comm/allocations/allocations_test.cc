// A small all-reduce takes less time than a few allocations.

#include <cstdint>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace {

thread_local int64_t allocations = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lockstep::allocations_test {
namespace {

TEST(Allocations, OfASynchronousAllReduceOverShmAreOne) {
  spawn(
      2,
      [](const ProcessGroup& world) {
        const torch::Tensor data = torch::ones({1024});
        world.all_reduce(data);
        constexpr int64_t kCalls = 100;
        const int64_t before = allocations;
        for (int64_t i = 0; i < kCalls; ++i) world.all_reduce(data);
        const int64_t per_call = (allocations - before) / kCalls;
        EXPECT_LE(per_call, 1);
        EXPECT_GT(allocations, 0) << "nothing is counted";
      },
      ProcessGroupOptions().backend("shm"));
}

}  // namespace
}  // namespace lockstep::allocations_test
