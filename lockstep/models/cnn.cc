#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/base/error.h"
#include "lockstep/models/convolution.h"
#include "lockstep/models/layers.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

// The smallest image: each of the three stages halves it.
constexpr int64_t kSmallestSide = 8;

}  // namespace

/// A small convolutional network that learns small images within seconds on a
/// CPU. It has three stages of a 3x3 convolution, BatchNorm, ReLU and a 2x2
/// max-pool, with 32, 64 and 128 channels, then the mean over the image, and a
/// Linear. For 10 classes it has 94,762 parameters, named conv1.weight,
/// bn1.weight, ..., fc.bias.
class Cnn final : public BuiltModel {
 public:
  Cnn(const ModelSpec& spec, Init init);

  /// Takes images (N, 3, H, W) of 8x8 pixels or more and returns (N, classes).
  /// Throws InvalidArgument for another shape.
  torch::Tensor forward(const torch::Tensor& x) override;

 private:
  struct Stage {
    torch::nn::Conv2d conv{nullptr};
    torch::nn::BatchNorm2d bn{nullptr};
  };

  std::array<Stage, 3> stages_;
  torch::nn::Linear fc_{nullptr};
};

Cnn::Cnn(const ModelSpec& spec, Init init) : BuiltModel(spec) {
  int64_t in = spec.channels;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const int64_t channels = int64_t{32} << i;
    // No bias: BatchNorm would cancel it.
    const auto options =
        torch::nn::Conv2dOptions(in, channels, 3).padding(1).bias(false);
    stages_[i].conv =
        register_module(fmt::format("conv{}", i + 1), conv2d(options, init));
    stages_[i].bn = register_module(fmt::format("bn{}", i + 1),
                                    torch::nn::BatchNorm2d(channels));
    in = channels;
  }
  fc_ = register_module("fc", linear(in, spec.classes, init));
}

torch::Tensor Cnn::forward(const torch::Tensor& x) {
  if (x.dim() != 4 || x.size(1) != spec_.channels ||
      x.size(2) < kSmallestSide || x.size(3) < kSmallestSide) {
    throw InvalidArgument(
        "models",
        {.code = ErrorCode::kBadTensor,
         .what = "cnn can't take this input",
         .expected = fmt::format("images (N, {1}, height, width) of {0}x{0} "
                                 "pixels or more",
                                 kSmallestSide, spec_.channels),
         .got = fmt::format("({})", fmt::join(x.sizes(), ", "))});
  }
  auto y = x;
  for (auto& stage : stages_) {
    y = stage.bn->forward(convolve(*stage.conv, y)).relu_();
    y = torch::max_pool2d(y, {2, 2});
  }
  return multiply(*fc_, torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
}

std::shared_ptr<Model> make_cnn(const ModelSpec& spec, Init init) {
  return std::make_shared<Cnn>(spec, init);
}

}  // namespace lockstep::models
