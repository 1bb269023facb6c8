#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// Returns the floating point operations per second that this thread achieves
/// on `device` when it multiplies large square matrices of `type`. This is an
/// upper bound for the steps of a model. It is the best rate of the products
/// within 50 ms.
double measure_matmul_rate(const c10::Device& device, c10::ScalarType type);

}  // namespace lockstep
