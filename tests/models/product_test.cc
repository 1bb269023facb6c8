// The tests of lockstep start programs with ONEDNN_MAX_CPU_ISA set, which
// decides how these products are computed on this processor.
#include "lockstep/models/product.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include "lockstep/device/autocast.h"
#include "tests/models/relative_error.h"

namespace lockstep::models {
namespace {

using torch::Tensor;

constexpr auto kNarrow = torch::kBFloat16;
constexpr auto kWide = torch::kFloat64;

Tensor leaf(torch::IntArrayRef sizes) {
  return torch::randn(sizes).requires_grad_();
}

Tensor product_of(const Tensor& x, const Tensor& weight) {
  return product(
      [](const Tensor& a, const Tensor& b) { return torch::mm(a, b); }, x,
      weight);
}

// Both sides have the same inputs, so the result has the error of one rounding
// to bfloat16, 2^-8, and the much smaller one of a sum in float32.
constexpr double kTolerance = 1.001 / 256;

TEST(Product, RoundsTheOperandsAndTheResult) {
  torch::manual_seed(1);
  const Tensor x = leaf({24, 300});
  const Tensor weight = leaf({300, 40});
  const Tensor upstream = torch::randn({24, 40}).to(kNarrow);
  const AutocastScope autocast(torch::kCPU, kNarrow);
  const Tensor y = product_of(x, weight);
  ASSERT_EQ(y.scalar_type(), kNarrow);
  const auto got = torch::autograd::grad({y}, {x, weight}, {upstream});
  const Tensor wide_x = x.detach().to(kNarrow).to(kWide);
  const Tensor wide_weight = weight.detach().to(kNarrow).to(kWide);
  const Tensor above = upstream.to(kWide);
  EXPECT_LT(relative_error(y, wide_x.mm(wide_weight)), kTolerance);
  EXPECT_LT(relative_error(got[0], above.mm(wide_weight.t())), kTolerance);
  EXPECT_LT(relative_error(got[1], wide_x.t().mm(above)), kTolerance);
  // A gradient of a leaf has the type of the leaf, but only bits of bfloat16.
  EXPECT_EQ(got[1].scalar_type(), torch::kFloat32);
  EXPECT_TRUE(torch::equal(got[1], got[1].to(kNarrow).to(torch::kFloat32)));
}

// 1 + 1/512 is rounded to 1, so that nothing is left of the difference.
TEST(Product, RoundsBeforeItMultiplies) {
  const Tensor x = torch::tensor({{1 + (1.0F / 512), -1.0F}});
  const Tensor ones = torch::ones({2, 3});
  torch::nn::Linear layer(torch::nn::LinearOptions(2, 3).bias(false));
  layer->weight.set_data(torch::ones({3, 2}));
  EXPECT_GT(product_of(x, ones).min().item<float>(), 0);
  const AutocastScope autocast(torch::kCPU, kNarrow);
  EXPECT_EQ(product_of(x, ones).count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(multiply(*layer, x).count_nonzero().item<int64_t>(), 0);
}

TEST(Product, IsPlainWithoutAutocast) {
  torch::manual_seed(1);
  const Tensor x = leaf({3, 64});
  const Tensor weight = leaf({64, 48});
  EXPECT_TRUE(torch::equal(product_of(x, weight), torch::mm(x, weight)));
  torch::nn::Linear layer(64, 48);
  EXPECT_TRUE(torch::equal(multiply(*layer, x), layer->forward(x)));
}

TEST(Product, LeavesOtherTypesToLibTorch) {
  const Tensor x = torch::randn({3, 8}, kWide);
  const Tensor weight = torch::randn({8, 5}, kWide);
  const AutocastScope autocast(torch::kCPU, kNarrow);
  EXPECT_TRUE(torch::equal(product_of(x, weight), torch::mm(x, weight)));
}

TEST(Product, TakesALayerWithoutABias) {
  torch::manual_seed(1);
  torch::nn::Linear layer(torch::nn::LinearOptions(64, 48).bias(false));
  const Tensor x = torch::randn({2, 5, 64});
  const AutocastScope autocast(torch::kCPU, kNarrow);
  const Tensor y = multiply(*layer, x);
  ASSERT_EQ(y.scalar_type(), kNarrow);
  const Tensor expected =
      x.to(kNarrow).to(kWide).matmul(layer->weight.to(kNarrow).to(kWide).t());
  EXPECT_LT(relative_error(y, expected), kTolerance);
}

/// A layer with so many weights that they are converted in parts, the last one
/// with fewer rows.
struct LargeLayer {
  torch::nn::Linear layer{nullptr};
  Tensor x;
  Tensor upstream;

  LargeLayer() {
    torch::manual_seed(1);
    layer = torch::nn::Linear(1030, 520);
    x = leaf({7, 1030});
    upstream = torch::randn({7, 520}).to(kNarrow);
  }
};

TEST(Product, MultipliesALargeLayer) {
  LargeLayer large;
  const auto wide = [](const Tensor& tensor) {
    return tensor.detach().to(kNarrow).to(kWide);
  };
  const AutocastScope autocast(torch::kCPU, kNarrow);
  const Tensor y = multiply(*large.layer, large.x);
  ASSERT_EQ(y.scalar_type(), kNarrow);
  const Tensor& weight = large.layer->weight;
  const Tensor& bias = large.layer->bias;
  const auto got =
      torch::autograd::grad({y}, {large.x, weight, bias}, {large.upstream});
  const Tensor x = wide(large.x);
  const Tensor above = large.upstream.to(kWide);
  EXPECT_LT(relative_error(y, x.mm(wide(weight).t()) + wide(bias)), kTolerance);
  EXPECT_LT(relative_error(got[0], above.mm(wide(weight))), kTolerance);
  EXPECT_LT(relative_error(got[1], above.t().mm(x)), kTolerance);
  EXPECT_LT(relative_error(got[2], above.sum(0)), kTolerance);
}

TEST(Product, HasSecondDerivativesOfALargeLayer) {
  LargeLayer large;
  const AutocastScope autocast(torch::kCPU, kNarrow);
  const auto second = [&](const Tensor& y) {
    const auto first = torch::autograd::grad({y.pow(2).mean()}, {large.x}, {},
                                             /*retain_graph=*/true,
                                             /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum()},
                                 {large.layer->weight})[0];
  };
  const Tensor got = second(multiply(*large.layer, large.x));
  const Tensor expected = second(large.layer->forward(large.x));
  // Each of about four roundings is an error of 2^-8.
  EXPECT_LT(relative_error(got, expected.to(kWide)), 1.0 / 64);
}

TEST(Product, GivesOnlyTheGradientsThatAreWanted) {
  LargeLayer large;
  const AutocastScope autocast(torch::kCPU, kNarrow);
  large.layer->weight.set_requires_grad(false);
  large.layer->bias.set_requires_grad(false);
  multiply(*large.layer, large.x).sum().backward();
  EXPECT_EQ(large.x.grad().sizes(), large.x.sizes());
  EXPECT_FALSE(large.layer->weight.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(multiply(*large.layer, large.x).requires_grad());
}

TEST(Product, RefusesWrongShapesAsLibTorch) {
  LargeLayer large;
  const AutocastScope autocast(torch::kCPU, kNarrow);
  EXPECT_THROW(multiply(*large.layer, large.x.narrow(1, 0, 1000)), c10::Error);
}

// oneDNN's products have the same roundings, and the sums differ by less than
// one of these.
TEST(Product, IsThatOfLibTorch) {
  torch::manual_seed(1);
  torch::nn::Linear layer(64, 48);
  const Tensor x = torch::randn({5, 64});
  const AutocastScope autocast(torch::kCPU, kNarrow);
  const Tensor got = multiply(*layer, x);
  const Tensor expected = layer->forward(x);
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  if (!has_rounded_products()) {
    EXPECT_TRUE(torch::equal(got, expected));
  }
  EXPECT_LT(relative_error(got, expected.to(kWide)), 1.0 / 128);
}

}  // namespace
}  // namespace lockstep::models
