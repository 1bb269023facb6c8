#pragma once

#include <array>
#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

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
  torch::nn::Sequential downsample_{nullptr};  // null: the shortcut is x
};
TORCH_MODULE(BasicBlock);

/// torchvision's ResNet of basic blocks: resnet18 and resnet34, by spec.name.
class ResNet final : public Model {
 public:
  explicit ResNet(const ModelSpec& spec, Init init = Init::kRandom);

  /// Takes images (N, 3, H, W) and returns (N, classes). Throws InvalidArgument
  /// for another shape.
  torch::Tensor forward(const torch::Tensor& x) override;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  ModelSpec spec_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> layers_{nullptr, nullptr, nullptr,
                                               nullptr};
  torch::nn::Linear fc_{nullptr};
};

}  // namespace lockstep::models
