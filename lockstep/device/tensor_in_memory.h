#pragma once

#include <torch/types.h>

namespace lockstep {

/// Returns a tensor with the layout of `like` at the start of `memory`, which
/// must have enough bytes. The tensor can't be resized.
torch::Tensor tensor_in_memory(at::DataPtr memory, const torch::Tensor& like);

}  // namespace lockstep
