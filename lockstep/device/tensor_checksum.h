#pragma once

#include <array>
#include <cstdint>
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

/// Returns the sum of the bytes of a dense tensor on the CPU as 64-bit words.
/// Runs at the speed of the caches. It shows that a bit changed, but not that
/// words changed places.
uint64_t sum_of_words(const torch::Tensor& tensor);

using SampledBits = std::array<uint64_t, 8>;
/// Returns the bits of a few elements of a tensor on the CPU, from the first to
/// the last, and zeros if it has fewer elements.
SampledBits sampled_bits(const torch::Tensor& tensor);

/// Returns a hash of sampled_bits(). Not every optimizer
/// increments the version of the tensors that it writes (torch::optim::SGD does
/// not), but each changes nearly all elements.
uint64_t sample_of(const torch::Tensor& tensor);

}  // namespace lockstep
