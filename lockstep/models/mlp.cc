#include "lockstep/models/mlp.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/models/layers.h"

namespace lockstep::models {

Mlp::Mlp(const ModelSpec& spec, Init init) : spec_(spec) {
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
    y = linears_[i]->forward(y).relu_();
  }
  return linears_.back()->forward(y);
}

std::shared_ptr<torch::nn::Module> Mlp::clone(
    const std::optional<torch::Device>& device) const {
  return with_state_of(*this, make(spec_, Init::kNone), device);
}

}  // namespace lockstep::models
