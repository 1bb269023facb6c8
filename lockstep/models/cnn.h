#pragma once

#include <array>
#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// A small convolutional network that learns small images within seconds on a
/// CPU. It has three stages of a 3x3 convolution, BatchNorm, ReLU and a 2x2
/// max-pool, with 32, 64 and 128 channels, then the mean over the image, and a
/// Linear. For 10 classes it has 94,762 parameters, named conv1.weight,
/// bn1.weight, ..., fc.bias.
class Cnn final : public Model {
 public:
  explicit Cnn(const ModelSpec& spec, Init init = Init::kRandom);

  /// Takes images (N, 3, H, W) of 8x8 pixels or more and returns (N, classes).
  /// Throws InvalidArgument for another shape.
  torch::Tensor forward(const torch::Tensor& x) override;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  struct Stage {
    torch::nn::Conv2d conv{nullptr};
    torch::nn::BatchNorm2d bn{nullptr};
  };

  ModelSpec spec_;
  std::array<Stage, 3> stages_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace lockstep::models
