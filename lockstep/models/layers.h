#pragma once

#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// Make a torch::nn::Linear or Conv2d (zero padding, no bias), which need not
/// be initialised. With Init::kNone, call them inside a RandomScope: one number
/// is drawn.
torch::nn::Linear linear(int64_t in_features, int64_t out_features, Init init);
torch::nn::Conv2d conv2d(const torch::nn::Conv2dOptions& options, Init init);

/// Build the models of make() from a spec that has been checked.
std::shared_ptr<Model> make_cnn(const ModelSpec& spec, Init init);
std::shared_ptr<Model> make_mlp(const ModelSpec& spec, Init init);
std::shared_ptr<Model> make_resnet(const ModelSpec& spec, Init init);

/// A model of make(). A clone is built again from the spec.
class BuiltModel : public Model {
 public:
  explicit BuiltModel(const ModelSpec& spec) : spec_(spec) {}
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 protected:
  const ModelSpec spec_;
};

/// Gives `to`, which has the same structure as `from`, copies of its parameters
/// and buffers on `device` (default: where they are), and its modes and
/// requires_grad. Returns `to`. This is the second half of a clone().
std::shared_ptr<torch::nn::Module> with_state_of(
    const torch::nn::Module& from, std::shared_ptr<torch::nn::Module> to,
    const std::optional<torch::Device>& device);

}  // namespace lockstep::models
