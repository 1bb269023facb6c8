#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/models/convolution.h"
#include "lockstep/models/layers.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                       Init init) {
  return conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                    .stride(stride)
                    .padding(kernel / 2)
                    .bias(false),
                init);
}

std::array<int, 4> blocks_of(const ModelSpec& spec) {
  return spec.name == "resnet34" ? std::array{3, 4, 6, 3}
                                 : std::array{2, 2, 2, 2};
}

void initialize(const torch::nn::Module& model) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (const auto* layer = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut,
                                       torch::kReLU);
    }
  }
}

}  // namespace

/// A residual block of two 3x3 convolutions and a shortcut (He et al. 2015,
/// figure 5, left). The shortcut is a 1x1 convolution if the shape changes.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride,
                 Init init);
  /// Takes (N, in_channels, H, W), returns (N, channels,
  /// H / stride, W / stride).
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Conv2d shortcut_conv_{nullptr};  // null: the shortcut is x
  torch::nn::BatchNorm2d shortcut_bn_{nullptr};
};
TORCH_MODULE(BasicBlock);

/// torchvision's ResNet of basic blocks: resnet18 and resnet34, by spec.name.
class ResNet final : public BuiltModel {
 public:
  ResNet(const ModelSpec& spec, Init init);

  /// Takes images (N, 3, H, W) and returns (N, classes). Throws InvalidArgument
  /// for another shape.
  torch::Tensor forward(const torch::Tensor& x) override;

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> layers_{nullptr, nullptr, nullptr,
                                               nullptr};
  torch::nn::Linear fc_{nullptr};
};

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels,
                               int64_t stride, Init init) {
  // torchvision draws the shortcut's weights first and names it last.
  if (stride != 1 || in_channels != channels) {
    shortcut_conv_ = conv(in_channels, channels, 1, stride, init);
    shortcut_bn_ = torch::nn::BatchNorm2d(channels);
  }
  conv1_ =
      register_module("conv1", conv(in_channels, channels, 3, stride, init));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(channels));
  conv2_ = register_module("conv2", conv(channels, channels, 3, 1, init));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(channels));
  if (!shortcut_conv_.is_empty()) {
    register_module("downsample",
                    torch::nn::Sequential(shortcut_conv_, shortcut_bn_));
  }
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& x) {
  auto y = bn1_->forward(convolve(*conv1_, x)).relu_();
  y = bn2_->forward(convolve(*conv2_, y));
  y.add_(shortcut_conv_.is_empty()
             ? x
             : shortcut_bn_->forward(convolve(*shortcut_conv_, x)));
  return y.relu_();
}

ResNet::ResNet(const ModelSpec& spec, Init init) : BuiltModel(spec) {
  const bool is_cifar = spec.stem == Stem::kCifar;
  conv1_ =
      register_module("conv1", is_cifar ? conv(spec.channels, 64, 3, 1, init)
                                        : conv(spec.channels, 64, 7, 2, init));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(64));
  int64_t in = 64;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t channels = int64_t{64} << i;
    torch::nn::Sequential layer;
    for (int block = 0; block < blocks_of(spec)[i]; ++block) {
      const int64_t stride = block == 0 && i > 0 ? 2 : 1;
      layer->push_back(BasicBlock(in, channels, stride, init));
      in = channels;
    }
    layers_[i] = register_module(fmt::format("layer{}", i + 1), layer);
  }
  fc_ = register_module("fc", linear(in, spec.classes, init));
  if (init == Init::kRandom) initialize(*this);
}

torch::Tensor ResNet::forward(const torch::Tensor& x) {
  if (x.dim() != 4 || x.size(1) != spec_.channels) {
    throw InvalidArgument(
        "models", {.code = ErrorCode::kBadTensor,
                   .what = spec_.name + " can't take this input",
                   .expected = fmt::format("images (N, {}, height, width)",
                                           spec_.channels),
                   .got = fmt::format("({})", fmt::join(x.sizes(), ", "))});
  }
  auto y = bn1_->forward(convolve(*conv1_, x)).relu_();
  if (spec_.stem == Stem::kImageNet)
    y = torch::max_pool2d(y, {3, 3}, {2, 2}, {1, 1});
  for (auto& layer : layers_) y = layer->forward(y);
  return multiply(*fc_, torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
}

std::shared_ptr<Model> make_resnet(const ModelSpec& spec, Init init) {
  return std::make_shared<ResNet>(spec, init);
}

}  // namespace lockstep::models
