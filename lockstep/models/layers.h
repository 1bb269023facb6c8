#pragma once

#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// torch::nn::Linear and Conv2d (zero padding, no bias) that can be had
/// without initialising them. With Init::kNone, call inside a RandomScope: one
/// number is drawn.
torch::nn::Linear linear(int64_t in_features, int64_t out_features, Init init);
torch::nn::Conv2d conv2d(const torch::nn::Conv2dOptions& options, Init init);

/// Gives `to` copies of the parameters and buffers of `from`, which is built
/// alike, on `device` (default: where they are); modes and requires_grad too.
/// Returns `to`: the second half of a clone().
std::shared_ptr<torch::nn::Module> with_state_of(
    const torch::nn::Module& from, std::shared_ptr<torch::nn::Module> to,
    const std::optional<torch::Device>& device);

}  // namespace lockstep::models
