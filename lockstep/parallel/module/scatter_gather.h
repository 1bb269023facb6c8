#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/device_copy.h"

namespace lockstep {

/// Splits `batch` along `dim` over `devices`, as nn.DataParallel does.
///
/// Chunks are ceil(n / k) long, so the last may be shorter and trailing
/// devices may get none: 5 over 4 gives 2, 2, 1. Tensors on another device are
/// copied; chunks for CPU slices share the batch's memory. `batch` may nest
/// tuples, lists and dicts of tensors; anything else is shared by reference,
/// and so is an undefined tensor.
///
/// Throws InvalidArgument for a tensor without `dim`, and for tensors that
/// give different numbers of chunks (PyTorch drops the surplus in silence).
std::vector<c10::IValue> scatter(const c10::IValue& batch,
                                 std::span<const Device> devices,
                                 int64_t dim = 0);

/// The inverse: concatenates the replicas' outputs along `dim` on
/// `output_device`. Nested outputs are gathered element by element, 0-d
/// tensors into a vector (with a warning). None, and an undefined tensor, which
/// is what None is in C++, stay what they are.
///
/// Throws InvalidArgument for outputs that differ in structure or shape, or
/// that only some replicas have, and for anything but tensors (return a tensor
/// instead of a number).
c10::IValue gather(std::span<const c10::IValue> outputs,
                   const Device& output_device, int64_t dim = 0);

}  // namespace lockstep
