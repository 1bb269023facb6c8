#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/models/layers.h"
#include "lockstep/models/product.h"

namespace lockstep::models {

/// A multi-layer perceptron: `depth` times Linear and ReLU, then a Linear. The
/// parameters are named as in torch.nn.Sequential: 0.weight, 0.bias, 2.weight,
/// ...
///
/// The weights before a ReLU are drawn by kaiming_normal_ (He et al. 2015,
/// eq. 10), biases and the last layer as in nn.Linear. The weights of nn.Linear
/// itself are smaller, by sqrt(6) per layer: after six layers nothing of the
/// input is left, and the loss stays at ln(classes).
class Mlp final : public BuiltModel {
 public:
  Mlp(const ModelSpec& spec, Init init);

  /// Takes (N, ...), which is flattened to (N, in_features), and returns
  /// (N, classes). Throws InvalidArgument if the input can't be flattened to
  /// this.
  torch::Tensor forward(const torch::Tensor& x) override;

 private:
  std::vector<torch::nn::Linear> linears_;
};

Mlp::Mlp(const ModelSpec& spec, Init init) : BuiltModel(spec) {
  for (int64_t i = 0; i <= spec.depth; ++i) {
    const int64_t in = i == 0 ? spec.in_features : spec.width;
    const int64_t out = i == spec.depth ? spec.classes : spec.width;
    // The odd positions of the Sequential are ReLUs.
    linears_.push_back(
        register_module(std::to_string(2 * i), linear(in, out, init)));
  }
  if (init == Init::kNone) return;
  for (size_t i = 0; i + 1 < linears_.size(); ++i) {
    torch::nn::init::kaiming_normal_(linears_[i]->weight, 0, torch::kFanIn,
                                     torch::kReLU);
  }
}

torch::Tensor Mlp::forward(const torch::Tensor& x) {
  auto y = x.dim() > 2 ? x.flatten(1) : x;
  if (y.dim() != 2 || y.size(1) != spec_.in_features) {
    throw InvalidArgument(
        "models", {.code = ErrorCode::kBadTensor,
                   .what = "mlp can't take this input",
                   .expected = fmt::format("(N, ...) with {} values a sample",
                                           spec_.in_features),
                   .got = fmt::format("({})", fmt::join(x.sizes(), ", ")),
                   .fix = "build the mlp with the in_features of the data"});
  }
  for (size_t i = 0; i + 1 < linears_.size(); ++i) {
    y = multiply(*linears_[i], y).relu_();
  }
  return multiply(*linears_.back(), y);
}

std::shared_ptr<Model> make_mlp(const ModelSpec& spec, Init init) {
  return std::make_shared<Mlp>(spec, init);
}

}  // namespace lockstep::models
