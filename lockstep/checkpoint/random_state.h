#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/device/device.h"

namespace lockstep {

/// Returns the states, as bytes, of LibTorch's default generators of the host
/// and of the GPUs among `devices`, by name ("cpu", "cuda:0"). The random
/// numbers of a shard do not come from them: those are keyed by seed, step and
/// shard.
std::map<std::string, torch::Tensor> random_state(
    const std::vector<Device>& devices);

/// Restores the saved states of the generators that exist here. Throws
/// CheckpointError naming a generator whose bytes are not a valid state.
void set_random_state(const std::map<std::string, torch::Tensor>& state,
                      const std::vector<Device>& devices);

}  // namespace lockstep
