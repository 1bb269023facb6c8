#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/device/device.h"

namespace lockstep {

struct DeviceOf {
  std::optional<Device> operator()(const at::Tensor& tensor) const;
};

/// device_of(tensor) returns the device that has the memory of `tensor`: its
/// GPU, or the slice in whose account it was allocated. It returns nullopt for
/// memory in the host's account, for memory that did not come from the
/// accounting allocator, and for tensors without memory (undefined, empty,
/// meta).
///
/// This is an object, because a function would be ambiguous with at::device_of,
/// which argument-dependent lookup also finds.
inline constexpr DeviceOf device_of;

}  // namespace lockstep
