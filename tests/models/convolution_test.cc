#include "lockstep/models/convolution.h"

#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include "lockstep/device/autocast.h"
#include "tests/models/relative_error.h"

namespace lockstep::models {
namespace {

using torch::Tensor;
using torch::nn::Conv2d;
using torch::nn::Conv2dImpl;
using torch::nn::Conv2dOptions;

constexpr auto kLast = torch::MemoryFormat::ChannelsLast;

/// A layer of 512 x 512 weights for each pixel of its kernel, and images for
/// it.
struct Work {
  Conv2dOptions options = Conv2dOptions(512, 512, 3).padding(1).bias(false);
  int64_t images = 3, height = 4, width = 4;
  std::string name;

  Conv2d layer() const {
    torch::manual_seed(1);
    Conv2d layer(options);
    const torch::NoGradGuard no_grad;
    layer->weight.set_data(layer->weight.contiguous(kLast));
    return layer;
  }
  Tensor x() const {
    return torch::randn({images, options.in_channels(), height, width})
        .contiguous(kLast)
        .requires_grad_();
  }
};

void PrintTo(const Work& work, std::ostream* stream) { *stream << work.name; }

/// Looks at the operator that made `y`, or `y` before it was rounded.
bool is_by_rows(const Tensor& y) {
  const auto is_it = [](const torch::autograd::Node& node) {
    return node.name().find("ConvolutionByRows") != std::string::npos;
  };
  const auto& node = *y.grad_fn();
  const auto before = node.next_edge(0).function;
  return is_it(node) || (before && is_it(*before));
}

struct Results {
  Tensor y, grad_x, grad_weight;
};

/// Computes gradients for upstream gradients that are rounded to `type`.
Results gradients(const Tensor& y, const Tensor& x, const Tensor& weight,
                  torch::ScalarType type = torch::kFloat32) {
  const Tensor upstream = torch::linspace(-1, 1.5, y.numel())
                              .view(y.sizes())
                              .to(type)
                              .to(y.scalar_type());
  const auto found = torch::autograd::grad({y}, {x, weight}, {upstream});
  return {y.detach(), found[0], found[1]};
}

/// Computes in float64 with LibTorch's operator, on inputs that are rounded to
/// `type`.
Results expected_of(const Conv2d& layer, const Tensor& x,
                    torch::ScalarType type) {
  const auto wide = [&](const Tensor& tensor) {
    return tensor.detach().to(type).to(torch::kFloat64).requires_grad_();
  };
  const Tensor images = wide(x);
  const Tensor weight = wide(layer->weight);
  const auto& padding =
      std::get<torch::ExpandingArray<2>>(layer->options.padding());
  const Tensor y =
      torch::conv2d(images, weight, {}, layer->options.stride(), padding);
  return gradients(y, images, weight, type);
}

void expect_near(const Results& got, const Results& expected,
                 double tolerance) {
  EXPECT_LT(relative_error(got.y, expected.y), tolerance);
  EXPECT_LT(relative_error(got.grad_x, expected.grad_x), tolerance);
  EXPECT_LT(relative_error(got.grad_weight, expected.grad_weight), tolerance);
}

class ConvolutionByRows : public testing::TestWithParam<Work> {};

// A sum of n products in float32 has an error of about sqrt(n) roundings of
// 6e-8, and n is at most 4608.
TEST_P(ConvolutionByRows, IsThatOfLibTorch) {
  Conv2d layer = GetParam().layer();
  const Tensor x = GetParam().x();
  const Tensor y = convolve(*layer, x);
  ASSERT_TRUE(is_by_rows(y));
  EXPECT_TRUE(y.is_contiguous(kLast));
  const Results got = gradients(y, x, layer->weight);
  EXPECT_EQ(got.grad_weight.strides(), layer->weight.strides());
  expect_near(got, expected_of(layer, x, torch::kFloat32), 4e-6);
}

// Both sides have the same inputs. Rounding a result to bfloat16 is an error of
// up to 2^-9 (2e-3), and a gradient of a weight may be a sum of two, rounded
// again.
TEST_P(ConvolutionByRows, ComputesInTheTypeOfAutocast) {
  Conv2d layer = GetParam().layer();
  const Tensor x = GetParam().x();
  const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
  const Tensor y = convolve(*layer, x);
  ASSERT_TRUE(is_by_rows(y));
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  const Results got = gradients(y, x, layer->weight, torch::kBFloat16);
  EXPECT_EQ(got.grad_weight.scalar_type(), torch::kFloat32);
  expect_near(got, expected_of(layer, x, torch::kBFloat16), 6e-3);
}

TEST_P(ConvolutionByRows, TakesAllThreads) {
  const Tensor x = GetParam().x();
  Conv2d layer = GetParam().layer();
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const Results got = gradients(convolve(*layer, x), x, layer->weight);
  at::set_num_threads(threads);
  expect_near(got, expected_of(layer, x, torch::kFloat32), 4e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ConvolutionByRows,
    testing::Values(
        Work{.name = "SmallImages"},
        // More rows than are copied at a time.
        Work{.options = Conv2dOptions(256, 256, 3).padding(1).bias(false),
             .images = 37,
             .height = 7,
             .width = 7,
             .name = "ManyRows"},
        Work{.options =
                 Conv2dOptions(256, 512, 3).padding(1).stride(2).bias(false),
             .height = 8,
             .width = 7,
             .name = "Stride"},
        Work{.options =
                 Conv2dOptions(128, 96, {3, 8}).padding({2, 0}).bias(false),
             .height = 5,
             .width = 9,
             .name = "WideKernel"},
        Work{.options = Conv2dOptions(384, 128, {3, 3}).bias(false),
             .height = 3,
             .width = 6,
             .name = "NoPadding"},
        // Most of the kernel lies outside of the image.
        Work{.options = Conv2dOptions(64, 128, 7).padding(6).bias(false),
             .images = 2,
             .height = 1,
             .width = 2,
             .name = "MorePaddingThanImage"}),
    [](const auto& work) { return work.param.name; });

TEST(ConvolutionByRows, HasSecondDerivatives) {
  const Work work;
  const auto second = [&](auto forward) {
    Conv2d layer = work.layer();
    const Tensor x = work.x();
    const auto first = torch::autograd::grad({forward(*layer, x).pow(2).mean()},
                                             {x}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum()}, {layer->weight})[0];
  };
  const Tensor got = second(&convolve);
  const Tensor expected = second(
      [](Conv2dImpl& layer, const Tensor& x) { return layer.forward(x); });
  EXPECT_LT(relative_error(got, expected.to(torch::kFloat64)), 1e-5);
}

TEST(ConvolutionByRows, GivesOnlyTheGradientsThatAreWanted) {
  const Work work;
  Conv2d layer = work.layer();
  const Tensor x = work.x();
  EXPECT_EQ(torch::autograd::grad({convolve(*layer, x).sum()}, {x})[0].sizes(),
            x.sizes());
  layer->weight.set_requires_grad(false);
  convolve(*layer, x).sum().backward();
  EXPECT_FALSE(layer->weight.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(convolve(*layer, x).requires_grad());
}

// All other layers are LibTorch's, with their bits and errors.
TEST(Convolve, LeavesOtherLayersToLibTorch) {
  const auto options = Work{}.options;
  const std::vector<Work> others = {
      {.options = Conv2dOptions(options).bias(true)},
      {.options = Conv2dOptions(options).groups(2)},
      {.options = Conv2dOptions(options).dilation(2)},
      {.options = Conv2dOptions(options).stride({1, 2})},
      {.options = Conv2dOptions(options).padding_mode(torch::kReflect)},
      {.options = Conv2dOptions(options).padding(torch::kSame)},
      {.options = Conv2dOptions(options).padding(3)},
      {.options = Conv2dOptions(1024, 512, 1).bias(false)},
      {.options = Conv2dOptions(64, 64, 3).bias(false)},
      {.images = 1, .height = 9, .width = 8},
  };
  for (size_t i = 0; i < others.size(); ++i) {
    Conv2d layer = others[i].layer();
    const Tensor x = others[i].x();
    const Tensor y = convolve(*layer, x);
    EXPECT_FALSE(is_by_rows(y)) << i;
    EXPECT_TRUE(torch::equal(y, layer->forward(x))) << i;
  }
}

TEST(Convolve, LeavesOtherTensorsToLibTorch) {
  const Work work;
  Conv2d layer = work.layer();
  const Tensor x = work.x();
  EXPECT_FALSE(is_by_rows(convolve(*layer, x.contiguous())));
  EXPECT_THROW(convolve(*layer, x.to(torch::kFloat64)), c10::Error);
  EXPECT_THROW(convolve(*layer, x.narrow(1, 0, 256)), c10::Error);
  EXPECT_THROW(convolve(*layer, torch::randn({1, 512, 0, 4})), c10::Error);
  layer->options.stride(0);
  EXPECT_THROW(convolve(*layer, x), c10::Error);
  layer->options.stride(1).padding(-1);
  EXPECT_THROW(convolve(*layer, x), c10::Error);
  layer->options.padding(1);
  layer->to(torch::kFloat64);
  const Tensor wide = convolve(*layer, x.to(torch::kFloat64));
  EXPECT_FALSE(is_by_rows(wide));
}

}  // namespace
}  // namespace lockstep::models
