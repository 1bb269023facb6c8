#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/models/model.h"

namespace lockstep::tasks {

/// Gives every 4-d parameter (a convolution's weight) the channels_last
/// layout, as PyTorch's module.to(memory_format=...) does.
void to_channels_last(torch::nn::Module& module);

/// Returns true if channels_last is faster, as for convolutions on CPU slices.
bool prefers_channels_last(const models::ModelSpec& spec,
                           const std::vector<Device>& devices);

/// Builds a model of `spec`, with channels_last parameters if asked to.
std::shared_ptr<models::Model> make_laid_out(
    const models::ModelSpec& spec, bool channels_last,
    models::Init init = models::Init::kRandom);

/// Returns a function that builds DataParallel's replicas of the model. Nothing
/// is drawn, because the original's values replace the initial ones at once.
std::function<std::shared_ptr<models::Model>()> replica_factory(
    const models::ModelSpec& spec, bool channels_last);

}  // namespace lockstep::tasks
