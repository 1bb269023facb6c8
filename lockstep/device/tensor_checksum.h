#pragma once

#include <string>

#include <torch/types.h>

#include "lockstep/base/checksum.h"

namespace lockstep {

/// Adds the elements of `tensor`, on any device, in the order of its memory. An
/// undefined tensor adds a distinct value.
void add_elements(Checksum& sum, const torch::Tensor& tensor);

/// Returns the checksum of the elements of `tensor` in hex, in the order of
/// their indices; "" if it is undefined.
std::string checksum_of(const torch::Tensor& tensor);

}  // namespace lockstep
