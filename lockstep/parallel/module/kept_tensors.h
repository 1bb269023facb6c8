#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Copies of tensors, to undo what a computation that is only made to look at
/// its result writes to them.
class KeptTensors {
 public:
  explicit KeptTensors(std::vector<torch::Tensor> tensors);

  /// Gives the tensors their values and version counters back, so that a
  /// backward that needs one of them does not see that it was written to.
  /// Tensors that nobody wrote to are not touched.
  void restore() const;

 private:
  struct Kept {
    torch::Tensor tensor;
    torch::Tensor values;
    int64_t version;
  };
  std::vector<Kept> kept_;
};

/// Keeps the buffers of `module`.
KeptTensors kept_buffers(const ModuleHandle& module);

}  // namespace lockstep
