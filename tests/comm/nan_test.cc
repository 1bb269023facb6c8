#include <chrono>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/comm/rank_tasks.h"

namespace lockstep::nan_test {
namespace {

using Op = ReduceOp::RedOpType;

constexpr int kRanks = 3;

/// Numbers of a rank, with a NaN where no other rank has one.
at::Tensor numbers_of(int rank, at::ScalarType type) {
  const at::Tensor numbers = (torch::arange(2.0 * kRanks) - 3) * (rank - 1);
  numbers[rank] = std::numeric_limits<double>::quiet_NaN();
  return numbers.to(type);
}

void check(const ProcessGroup& world, at::ScalarType type) {
  at::Tensor least = numbers_of(0, type), largest = least;
  for (int rank = 1; rank < kRanks; ++rank) {
    least = torch::minimum(least, numbers_of(rank, type));
    largest = torch::maximum(largest, numbers_of(rank, type));
  }
  at::Tensor min = numbers_of(world.rank(), type), max = min.clone();
  world.all_reduce(min, Op::MIN);
  world.all_reduce(max, Op::MAX);
  require(torch::allclose(min, least, 0, 0, /*equal_nan=*/true), "MIN");
  require(torch::allclose(max, largest, 0, 0, /*equal_nan=*/true), "MAX");
}

class NanOfARank : public testing::TestWithParam<const char*> {};

TEST_P(NanOfARank, IsTheLargestAndTheSmallestAsInTorch) {
  ProcessGroupOptions options;
  options.backend(GetParam()).timeout(std::chrono::seconds(60));
  spawn(
      kRanks,
      [](const ProcessGroup& world) {
        for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf}) {
          check(world, type);
        }
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Backends, NanOfARank, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::nan_test
