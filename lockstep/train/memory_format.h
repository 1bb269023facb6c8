#pragma once

#include <functional>
#include <memory>

#include "lockstep/models/model.h"

namespace lockstep::train {

/// Gives every 4-d parameter (a convolution's weight) the channels_last
/// layout, as PyTorch's module.to(memory_format=...) does.
void to_channels_last(torch::nn::Module& module);

/// Builds models of `spec`, in that layout if asked to.
std::function<std::shared_ptr<models::Model>()> model_factory(
    const models::ModelSpec& spec, bool channels_last);

}  // namespace lockstep::train
