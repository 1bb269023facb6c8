#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace lockstep::data {

/// Samples that are trained on together, or a rank's part of them.
struct Batch {
  /// The arguments of the module's forward(). Each is a tensor of (N, ...), or
  /// a tuple, list or dict of such tensors.
  std::vector<c10::IValue> inputs;
  /// The target that the loss compares the output with. It has the same form.
  c10::IValue target;
  int64_t samples = 0;  ///< N
  int64_t total = 0;    ///< samples of the whole batch, on all ranks

  /// Returns the input of a forward() that takes one tensor.
  torch::Tensor input() const { return inputs.at(0).toTensor(); }
  torch::Tensor target_tensor() const { return target.toTensor(); }
};

}  // namespace lockstep::data
