#pragma once

#include <memory>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/models/model.h"
#include "lockstep/parallel/module/module_source.h"

namespace lockstep::tasks {

/// Returns true if channels_last is faster, as for convolutions on CPU slices.
bool prefers_channels_last(const models::ModelSpec& spec,
                           const std::vector<Device>& devices);

/// Builds a model of `spec`, with channels_last parameters if asked to.
std::shared_ptr<models::Model> make_laid_out(
    const models::ModelSpec& spec, bool channels_last,
    models::Init init = models::Init::kRandom);

/// Returns `model` as an engine runs it. Nothing is drawn for its replicas,
/// because the original's values replace the initial ones at once.
ModuleSource module_of(const std::shared_ptr<models::Model>& model,
                       const models::ModelSpec& spec, bool channels_last);

}  // namespace lockstep::tasks
