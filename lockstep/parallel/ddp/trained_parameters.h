#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/module/module_handle.h"

namespace lockstep::ddp {

/// The parameters of a module that require a gradient, each once.
struct TrainedParameters {
  /// Throws InvalidArgument if no parameter requires a gradient, or if the
  /// parameters that do are not all on one device.
  explicit TrainedParameters(const ModuleHandle& module);

  /// Returns the names of parameters for a message, at most the first ten.
  std::string names_of(const std::vector<size_t>& places) const;

  std::vector<std::string> names;
  std::vector<torch::Tensor> parameters;
  ModuleHandle::Named frozen;  ///< parameters that require no gradient
  torch::Device device = torch::kCPU;
};

}  // namespace lockstep::ddp
