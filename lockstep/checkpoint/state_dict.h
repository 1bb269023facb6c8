#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace lockstep {

/// Tensors by name, in order.
using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;
/// The state of an optimizer, or of another part of a run, by name.
using OptimizerState = std::map<std::string, torch::Tensor>;

/// Returns the module's parameters, then its buffers, with PyTorch's names, in
/// the order of registration. Shares storage with the module.
NamedTensors state_dict(const torch::nn::Module& module);

/// Throws CheckpointError unless `tensors` fit `module`, the state dict of a
/// module. The error counts and names the entries that are missing, unexpected,
/// misshapen or of another type (only the first of many). A floating type fits
/// any floating type whose range includes the numbers. A single number (a
/// counter) fits every type that can hold it. Every other type fits only
/// itself. `source` is the file to blame, if any.
void check_state_dict(const NamedTensors& module, const NamedTensors& tensors,
                      const std::string& source = "");

/// Copies `tensors` into the module, converted to its floating types and its
/// devices. If they don't fit, throws as check_state_dict() does and changes
/// nothing. A leading "module." is dropped if all names have it and `module` is
/// not a wrapper: the state of a wrapper (DataParallel or DDP, also PyTorch's)
/// fits the module that it wraps. The reverse is an error, as in PyTorch: load
/// into *model->module().
void load_state_dict(const NamedTensors& module, const NamedTensors& tensors,
                     const std::string& source = "");
void load_state_dict(torch::nn::Module& module, const NamedTensors& tensors,
                     const std::string& source = "");

/// Returns the SHA-256, in hex, over every parameter and buffer in the order of
/// their names: the name, a zero byte, the dtype as in safetensors, a zero
/// byte, the shape ("64,3,7,7"), a zero byte, and the bytes.
std::string parameter_digest(const torch::nn::Module& module);
/// Returns the same for a state dict.
std::string parameter_digest(NamedTensors entries);

/// Saves only a module (no optimizer) as one safetensors file. To write the
/// names of the module that a wrapper wraps, without "module.", save
/// *model->module().
void save(const torch::nn::Module& module, const std::string& path);
/// Loads such a file, or a folder with model.safetensors or with the files that
/// model.safetensors.index.json lists.
void load(torch::nn::Module& module, const std::string& path);

}  // namespace lockstep
