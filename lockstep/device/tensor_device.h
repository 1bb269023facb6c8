#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/device/device.h"

namespace lockstep {

struct DeviceOf {
  std::optional<Device> operator()(const at::Tensor& tensor) const;
};

/// device_of(tensor): where the memory of `tensor` is: its GPU, or the slice on
/// whose account it was allocated. Nothing for memory of the host's account,
/// for memory that did not come from the accounting allocator, and for tensors
/// without memory (undefined, empty, meta).
///
/// An object, because a function would be ambiguous with at::device_of, which
/// every call with a tensor finds too.
inline constexpr DeviceOf device_of;

}  // namespace lockstep
