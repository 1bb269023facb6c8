#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/safetensors.h"

namespace lockstep {

/// The module's parameters, then its buffers, by PyTorch's names, in the order
/// of registration. Shares storage with the module.
std::vector<std::pair<std::string, torch::Tensor>> state_dict(
    const torch::nn::Module& module);

/// Copies `tensors` into the module. All or nothing: throws CheckpointError
/// naming every missing, unexpected and misshapen entry. A leading "module."
/// (PyTorch's DataParallel and DDP write one) is dropped when all names have
/// it.
void load_state_dict(
    torch::nn::Module& module,
    const std::vector<std::pair<std::string, torch::Tensor>>& tensors);

/// SHA-256, in hex, over name, dtype, shape and bytes of every parameter and
/// buffer, in the order of their names.
std::string parameter_digest(const torch::nn::Module& module);

/// Saves or loads a module alone (no optimizer) as one safetensors file.
void save(const torch::nn::Module& module, const std::string& path);
void load(torch::nn::Module& module, const std::string& path);

}  // namespace lockstep
