#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// A multi-layer perceptron: `depth` times Linear and ReLU, then a Linear. The
/// parameters are named as in torch.nn.Sequential: 0.weight, 0.bias, 2.weight,
/// ...
///
/// The weights before a ReLU are drawn by kaiming_normal_ (He et al. 2015,
/// eq. 10), biases and the last layer as in nn.Linear. The weights of nn.Linear
/// itself are smaller, by sqrt(6) per layer: after six layers nothing of the
/// input is left, and the loss stays at ln(classes).
class Mlp final : public Model {
 public:
  explicit Mlp(const ModelSpec& spec, Init init = Init::kRandom);

  /// Takes (N, ...), which is flattened to (N, in_features), and returns
  /// (N, classes). Throws InvalidArgument if the input can't be flattened to
  /// this.
  torch::Tensor forward(const torch::Tensor& x) override;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  ModelSpec spec_;
  std::vector<torch::nn::Linear> linears_;
};

}  // namespace lockstep::models
