#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/models/model.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::models {
namespace {

using Sizes = std::vector<int64_t>;

// Returns layer `number` of a resnet18, which has two basic blocks.
torch::nn::Sequential layer(int number) {
  const auto children = make({.name = "resnet18"})->named_children();
  return torch::nn::Sequential(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(
          children["layer" + std::to_string(number)]));
}

// Returns the output for `x`, with the weights and x in the layout `format`.
torch::Tensor forward_in(torch::MemoryFormat format, Model& model,
                         const torch::Tensor& x) {
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
  return model.forward(x.contiguous(format));
}

TEST(BasicBlock, HalvesTheImageWithItsStride) {
  EXPECT_EQ(layer(2)->forward(torch::randn({2, 64, 6, 6})).sizes(),
            (Sizes{2, 128, 3, 3}));
}

TEST(BasicBlock, HasAShortcutOnlyWhereTheShapeChanges) {
  const auto has_shortcut = [](int number, const std::string& block) {
    return layer(number)->named_modules().contains(block + ".downsample");
  };
  EXPECT_TRUE(has_shortcut(2, "0"));
  EXPECT_FALSE(has_shortcut(1, "0"));
  EXPECT_FALSE(has_shortcut(2, "1"));
}

TEST(BasicBlock, AddsItsInput) {
  auto blocks = layer(1);
  const torch::NoGradGuard no_grad;
  for (const char* block : {"0", "1"}) {
    blocks->named_parameters()[std::string(block) + ".bn2.weight"].zero_();
  }
  const auto x = torch::randn({2, 64, 4, 4});
  EXPECT_TRUE(blocks->forward(x).equal(x.relu()));
}

// In channels_last, layers are computed as matrix products (convolution.h). The
// error is that of sums of up to 4608 products in another order, in 18 layers.
TEST(ResNet, ComputesTheSameInBothLayouts) {
  torch::manual_seed(1);
  const auto model = make({.name = "resnet18"});
  const auto x = torch::randn({4, 3, 32, 32});
  const torch::NoGradGuard no_grad;
  const auto plain = forward_in(torch::MemoryFormat::Contiguous, *model, x);
  const auto by_rows = forward_in(torch::MemoryFormat::ChannelsLast, *model, x);
  EXPECT_FALSE(by_rows.equal(plain));
  EXPECT_TRUE(by_rows.allclose(plain, 1e-3, 1e-3));
}

TEST(ResNet, StartsWithTheStemOfItsSpec) {
  const auto cifar = make({.name = "resnet18"}, Init::kNone);
  EXPECT_EQ(cifar->named_parameters()["conv1.weight"].sizes(),
            (Sizes{64, 3, 3, 3}));
  const auto imagenet =
      make({.name = "resnet18", .stem = Stem::kImageNet}, Init::kNone);
  EXPECT_EQ(imagenet->named_parameters()["conv1.weight"].sizes(),
            (Sizes{64, 3, 7, 7}));
  EXPECT_EQ(cifar->named_parameters().keys(),
            imagenet->named_parameters().keys());
}

TEST(ResNet, ImageNetStemKeepsASixteenthOfThePixels) {
  const auto cifar = make({.name = "resnet18"});
  const auto imagenet = make({.name = "resnet18", .stem = Stem::kImageNet});
  // Only one pixel is left, so there is no variance. BatchNorm refuses that in
  // training.
  const auto x = torch::randn({1, 3, 32, 32});
  EXPECT_NO_THROW(cifar->forward(x));
  EXPECT_ANY_THROW(imagenet->forward(x));
  imagenet->eval();
  EXPECT_EQ(imagenet->forward(x).sizes(), (Sizes{1, 10}));
}

TEST(ResNet, MovesItsStatisticsInTrainingOnly) {
  const auto model = make({.name = "resnet18"});
  const auto mean = [&] {
    return model->named_buffers()["layer4.1.bn2.running_mean"].clone();
  };
  const auto x = torch::randn({4, 3, 16, 16});
  const auto start = mean();
  model->eval();
  const auto first = model->forward(x);
  EXPECT_TRUE(model->forward(x).equal(first));
  EXPECT_TRUE(mean().equal(start));
  model->train();
  EXPECT_FALSE(model->forward(x).equal(first));
  EXPECT_FALSE(mean().equal(start));
  EXPECT_EQ(model->named_buffers()["bn1.num_batches_tracked"].item<int64_t>(),
            1);
}

TEST(ResNet, KeepsChannelsLast) {
  const auto model = make({.name = "resnet18"});
  model->eval();
  const auto x = torch::randn({2, 3, 16, 16});
  const auto expected = model->forward(x);
  const auto y = forward_in(torch::MemoryFormat::ChannelsLast, *model, x);
  EXPECT_TRUE(y.allclose(expected, 1e-4, 1e-4));
}

TEST(ResNet, SaysWhatInputItTakes) {
  const auto model = make({.name = "resnet34"}, Init::kNone);
  EXPECT_EQ(error_of<InvalidArgument>([&] {
              model->forward(torch::randn({2, 1, 28, 28}));
            }),
            "[models] resnet34 can't take this input; expected images "
            "(N, 3, height, width), got (2, 1, 28, 28) [bad-tensor]");
  EXPECT_THROW(model->forward(torch::randn({3, 32, 32})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::models
