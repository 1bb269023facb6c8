#pragma once

#include <torch/types.h>

namespace lockstep {

/// A tensor laid out like `like` at the start of `memory`, which has as many
/// bytes. It can't be resized.
torch::Tensor tensor_in_memory(at::DataPtr memory, const torch::Tensor& like);

}  // namespace lockstep
