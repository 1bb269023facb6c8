#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The module's parameters, then its buffers, by PyTorch's names, in the order
/// of registration. Shares storage with the module.
NamedTensors state_dict(const torch::nn::Module& module);

/// Throws CheckpointError unless `tensors` fit `module`, the state dict of a
/// module: it counts and names
/// the missing, unexpected and misshapen entries and those of another type (the
/// first ones of many). A floating type fits any floating type in whose range
/// the numbers are, and a single number (a counter) every type that can hold
/// it; every other type fits itself alone. `source` is the file to blame, if
/// any.
void check_state_dict(const NamedTensors& module, const NamedTensors& tensors,
                      const std::string& source = "");

/// Copies `tensors` into the module, converted to its floating types and its
/// devices. All or nothing: throws as check_state_dict() does. A leading
/// "module." (PyTorch's DataParallel and DDP write one) is dropped when all
/// names have it.
void load_state_dict(const NamedTensors& module, const NamedTensors& tensors,
                     const std::string& source = "");
void load_state_dict(torch::nn::Module& module, const NamedTensors& tensors,
                     const std::string& source = "");

/// SHA-256, in hex, over every parameter and buffer in the order of their
/// names: the name, a zero byte, the dtype as safetensors spells it, a zero
/// byte, the shape ("64,3,7,7"), a zero byte, and the bytes.
std::string parameter_digest(const torch::nn::Module& module);
/// The same of a state dict.
std::string parameter_digest(NamedTensors entries);

/// Saves or loads a module alone (no optimizer) as one safetensors file.
void save(const torch::nn::Module& module, const std::string& path);
void load(torch::nn::Module& module, const std::string& path);

}  // namespace lockstep
