#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/device/device.h"

namespace lockstep {

/// LibTorch's default generators of the host and of the GPUs among `devices`,
/// by name ("cpu", "cuda:0"), as bytes. A shard's random numbers do not come
/// from them: these are keyed by seed, step and shard.
std::map<std::string, torch::Tensor> random_state(
    const std::vector<Device>& devices);

/// Gives the generators that are here the state that was saved for them.
/// Throws CheckpointError naming the one whose bytes can't be its state.
void set_random_state(const std::map<std::string, torch::Tensor>& state,
                      const std::vector<Device>& devices);

}  // namespace lockstep
