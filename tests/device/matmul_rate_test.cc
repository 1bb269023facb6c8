#include "lockstep/device/matmul_rate.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep {
namespace {

// Between a tenth of a simple loop's rate and that of no machine yet.
TEST(MatmulRate, IsThatOfAMachine) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const double rate = measure_matmul_rate(torch::kCPU, type);
    EXPECT_GT(rate, 1e8);
    EXPECT_LT(rate, 1e18);
  }
}

}  // namespace
}  // namespace lockstep
