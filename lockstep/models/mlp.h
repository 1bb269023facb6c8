#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// `depth` times Linear and ReLU, then a Linear: the parameters are named as
/// in torch.nn.Sequential, 0.weight, 0.bias, 2.weight, ...
class Mlp final : public Model {
 public:
  explicit Mlp(const ModelSpec& spec, Init init = Init::kRandom);

  /// (N, ...) in, flattened to (N, in_features); (N, classes) out. Throws
  /// InvalidArgument if it can't be flattened so.
  torch::Tensor forward(const torch::Tensor& x) override;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  ModelSpec spec_;
  std::vector<torch::nn::Linear> linears_;
};

}  // namespace lockstep::models
