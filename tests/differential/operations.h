#pragma once

#include <vector>

#include <torch/types.h>

#include "tests/differential/case.h"
#include "tests/differential/interpreted_module.h"

namespace lockstep::differential {

/// Computes `node` in `module`. Throws std::out_of_range for an operation that
/// there is not, and whatever LibTorch throws.
torch::Tensor compute(InterpretedModule& module, const Node& node,
                      const std::vector<torch::Tensor>& arguments);

}  // namespace lockstep::differential
