#pragma once

#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Copies of the values of a module's buffers, to be given back.
class KeptBuffers {
 public:
  explicit KeptBuffers(const ModuleHandle& module);
  void restore() const;

 private:
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> values_;
};

}  // namespace lockstep
