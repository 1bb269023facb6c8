#pragma once

#include <torch/torch.h>

#include "lockstep/base/checksum.h"

namespace lockstep {

/// Adds the elements of `tensor`, on whatever device, in the order of its
/// memory. One that is undefined has a checksum of its own.
void add_elements(Checksum& sum, const torch::Tensor& tensor);

}  // namespace lockstep
