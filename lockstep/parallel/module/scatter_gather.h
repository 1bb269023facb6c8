#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/device_copy.h"

namespace lockstep {

/// Returns the size along `dim` that all tensors in `batch` have, except those
/// that are shared(). Returns nothing if there is no other tensor.
///
/// Throws InvalidArgument, naming the tensor, for one without `dim` or with
/// another size than the first one, and for a nested tensor.
std::optional<int64_t> batch_size_of(const c10::IValue& batch, int64_t dim);

/// Splits `batch` along `dim` over `devices`, as nn.DataParallel does.
///
/// Each chunk has ceil(n / k) samples, so the last one may be smaller and the
/// last devices may get none: 5 samples over 4 devices give 2, 2, 1. Tensors on
/// another device are copied. Chunks for CPU slices share the batch's memory.
/// `batch` may nest tuples, lists and dicts of tensors. Tensors that are
/// shared() are passed whole. Other values and undefined tensors are shared by
/// reference.
///
/// Throws InvalidArgument if batch_size_of() does. PyTorch instead splits
/// tensors of different sizes independently, and silently drops the extra
/// chunks of the longer ones.
std::vector<c10::IValue> scatter(const c10::IValue& batch,
                                 std::span<const Device> devices,
                                 int64_t dim = 0);

/// Concatenates the replicas' outputs along `dim` on `output_device`: the
/// inverse of scatter(). Nested outputs are gathered element by element, and
/// 0-d tensors into a vector (with a warning). None, and an undefined tensor,
/// which stands for None in C++, are returned unchanged.
///
/// Throws ParallelError for outputs that differ in structure or shape, or that
/// only some replicas have, and for values that are not tensors (return a
/// tensor instead of a number).
c10::IValue gather(std::span<const c10::IValue> outputs,
                   const Device& output_device, int64_t dim = 0);

namespace detail {

/// Returns consecutive parts of `batch` along `dim`: one of `sizes[i]` samples
/// on `devices[i]` for each i. Tensors that are shared() are passed whole.
std::vector<c10::IValue> cut(const c10::IValue& batch,
                             std::span<const int64_t> sizes,
                             std::span<const Device> devices, int64_t dim);

}  // namespace detail

}  // namespace lockstep
