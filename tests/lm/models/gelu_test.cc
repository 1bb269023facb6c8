#include "lockstep/lm/models/gelu.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace lockstep::models {
namespace {

using torch::Tensor;

// Values where the function bends, where it is straight, and far out.
Tensor inputs() {
  const auto options = torch::TensorOptions(torch::kFloat32);
  return torch::cat({torch::linspace(-12, 12, 40'001, options),
                     torch::logspace(-30, 30, 301, 10, options),
                     -torch::logspace(-30, 30, 301, 10, options)});
}

struct Result {
  Tensor y, gradient;
};

template <class Gelu>
Result run(const Gelu& gelu, const Tensor& values, const Tensor& upstream) {
  const Tensor x = values.detach().clone().requires_grad_();
  const Tensor y = gelu(x);
  return {y.detach(), torch::autograd::grad({y}, {x}, {upstream})[0]};
}

// Compares with LibTorch's in float64. The error is that of rounding in
// float32.
TEST(TanhGelu, IsThatOfLibTorch) {
  const Tensor x = inputs();
  const Tensor upstream = torch::linspace(-2, 2, x.numel());
  const Result got = run(tanh_gelu, x, upstream);
  const Result expected =
      run([](const Tensor& wide) { return torch::gelu(wide, "tanh"); },
          x.to(torch::kFloat64), upstream.to(torch::kFloat64));
  const Tensor scale = x.to(torch::kFloat64).abs().clamp_min(1);
  const auto worst = [&](const Tensor& a, const Tensor& b) {
    return ((a.to(torch::kFloat64) - b).abs() / scale).max().item<double>();
  };
  EXPECT_LT(worst(got.y, expected.y), 3e-7);
  EXPECT_LT(worst(got.gradient, expected.gradient), 1e-6);
}

TEST(TanhGelu, RoundsFloat32ToBFloat16) {
  const Tensor x = inputs().to(torch::kBFloat16);
  const Tensor upstream =
      torch::linspace(-2, 2, x.numel()).to(torch::kBFloat16);
  const Result got = run(tanh_gelu, x, upstream);
  const Result wide =
      run(tanh_gelu, x.to(torch::kFloat32), upstream.to(torch::kFloat32));
  EXPECT_TRUE(torch::equal(got.y, wide.y.to(torch::kBFloat16)));
  EXPECT_TRUE(torch::equal(got.gradient, wide.gradient.to(torch::kBFloat16)));
}

// Tests vectors and the elements after the last vector, with contiguous and
// other tensors.
TEST(TanhGelu, GivesEachElementTheSameBitsEverywhere) {
  const Tensor x = torch::linspace(-4, 4, 77);
  const Tensor whole = tanh_gelu(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    EXPECT_EQ(tanh_gelu(x.slice(0, i, i + 1)).item<float>(),
              whole[i].item<float>());
  }
  const Tensor table = torch::stack({x, -x}, 1);
  EXPECT_TRUE(torch::equal(tanh_gelu(table.select(1, 0)), whole));
  const Tensor large = torch::linspace(-4, 4, 100'003);
  const int threads = at::get_num_threads();
  const Tensor by_all = tanh_gelu(large);
  at::set_num_threads(1);
  EXPECT_TRUE(torch::equal(tanh_gelu(large), by_all));
  at::set_num_threads(threads);
}

TEST(TanhGelu, KeepsWhatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const Tensor x = torch::tensor({nan, infinity}).to(type);
    const Result got = run(tanh_gelu, x, torch::ones_like(x));
    EXPECT_TRUE(std::isnan(got.y[0].item<float>()));
    EXPECT_TRUE(std::isnan(got.gradient[0].item<float>()));
    EXPECT_EQ(got.y[1].item<float>(), infinity);
    EXPECT_EQ(got.gradient[1].item<float>(), 1);
  }
}

TEST(TanhGelu, HasSecondDerivatives) {
  const auto second = [](const auto& gelu, const Tensor& values) {
    const Tensor x = values.clone().requires_grad_();
    const Tensor first =
        torch::autograd::grad({gelu(x).sum()}, {x}, {}, std::nullopt,
                              /*create_graph=*/true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0];
  };
  const Tensor x = torch::linspace(-3, 3, 31);
  EXPECT_TRUE(torch::allclose(
      second(tanh_gelu, x),
      second([](const Tensor& y) { return torch::gelu(y, "tanh"); }, x)));
}

// Tests types that have no separate loop.
TEST(TanhGelu, TakesOtherTypes) {
  for (const auto type : {torch::kFloat64, torch::kHalf}) {
    const Tensor x = torch::linspace(-3, 3, 31).to(type);
    EXPECT_TRUE(torch::equal(tanh_gelu(x), torch::gelu(x, "tanh")));
  }
  EXPECT_EQ(tanh_gelu(torch::empty({0, 4})).numel(), 0);
}

}  // namespace
}  // namespace lockstep::models
