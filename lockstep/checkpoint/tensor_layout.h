#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {

/// A tensor without its data.
struct TensorLayout {
  std::string name;
  c10::ScalarType type = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< dense, so that its bytes are in one piece

  size_t bytes() const;
  /// Returns a new tensor on the host.
  torch::Tensor make() const;
  /// Returns a view of memory on the host.
  torch::Tensor view(std::byte* data) const;
};

/// A tensor that is not dense gets the strides of a contiguous one.
std::vector<TensorLayout> layouts_of(const NamedTensors& tensors);

/// Formats layouts as a text that parse_layouts() reads.
std::string format_layouts(const std::vector<TensorLayout>& layouts);
/// Reads what format_layouts() wrote in this version of Lockstep.
std::vector<TensorLayout> parse_layouts(std::string_view text);

}  // namespace lockstep
