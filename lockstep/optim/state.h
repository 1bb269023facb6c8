#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

namespace lockstep::optim {

/// Adds "<name>.<i>" for each tensor.
void export_state(const std::string& name,
                  const std::vector<torch::Tensor>& tensors,
                  std::map<std::string, torch::Tensor>& state);

/// Copies "<name>.<i>" into each tensor. Throws CheckpointError if one is
/// missing or has another shape.
void import_state(const std::string& name,
                  const std::map<std::string, torch::Tensor>& state,
                  const std::vector<torch::Tensor>& tensors);

int64_t bytes_of(const std::vector<torch::Tensor>& tensors);

}  // namespace lockstep::optim
