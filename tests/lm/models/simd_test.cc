#include "lockstep/device/simd.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/lm/models/small_product.h"

namespace lockstep::simd {
namespace {

std::vector<float> inputs() {
  std::vector<float> values;
  for (int i = 0; i < 4001; ++i) {
    values.push_back(-87.0F + (0.043F * static_cast<float>(i)));
  }
  return values;
}

/// Writes the exponentials, rounded ones and sums of them.
struct Body {
  LOCKSTEP_INLINE static void run(const float* x, float* y, c10::BFloat16* half,
                                  float* sums, int64_t count) {
    Lanes total = all(0);
    for_lanes(count, [&](int64_t i, int64_t n) LOCKSTEP_INLINE_LAMBDA {
      const Lanes value = exponential(load(x + i, n));
      store(value, y + i, n);
      store(value / (value + 1), half + i, n);
      total = total + (load(x + i, n) * load(x + i, n));
    });
    // 7 rows of 48 columns, over 40 values.
    multiply({x, 40}, x + 300, 48, y, 48, 7, 40, 48, /*adds=*/true);
    sums[0] = sum(total);
    sums[1] = largest(total);
  }
};

struct Result {
  explicit Result(size_t count) : y(count), half(count) {}
  std::vector<float> y;
  std::vector<c10::BFloat16> half;
  float sums[2] = {};
};

using Run = void (*)(const float*, float*, c10::BFloat16*, float*, int64_t);

Result result_of(Run function) {
  const std::vector<float> x = inputs();
  Result result(x.size());
  function(x.data(), result.y.data(), result.half.data(), result.sums,
           static_cast<int64_t>(x.size()));
  return result;
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_EQ(a.y, b.y);
  for (size_t i = 0; i < a.half.size(); ++i) {
    ASSERT_EQ(a.half[i].x, b.half[i].x) << i;
  }
  EXPECT_EQ(a.sums[0], b.sums[0]);
  EXPECT_EQ(a.sums[1], b.sums[1]);
}

// Processors without AVX2 have no fused multiply-add for the product.
TEST(Simd, GivesTheSameBitsWithAvx2AndAvx512) {
#if defined(__x86_64__)
  using P = const float*;
  if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("fma")) {
    GTEST_SKIP() << "the processor has only one of them";
  }
  expect_same(
      result_of(run_avx2<Body, P, float*, c10::BFloat16*, float*, int64_t>),
      result_of(run_avx512<Body, P, float*, c10::BFloat16*, float*, int64_t>));
#else
  GTEST_SKIP() << "the processor has neither";
#endif
}

TEST(Simd, ComputesExponentials) {
  const std::vector<float> x = inputs();
  const Result plain = result_of(
      run_plain<Body, const float*, float*, c10::BFloat16*, float*, int64_t>);
  // The first 7 x 48 are a product.
  for (size_t i = 7 * 48; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(plain.y[i] / exact, 1, 2e-7) << x[i];
  }
}

}  // namespace
}  // namespace lockstep::simd
