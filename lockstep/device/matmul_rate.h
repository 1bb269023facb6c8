#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// Floating point operations that this thread gets out of `device` in a second,
/// multiplying large square matrices of `type`: what the steps of a model could
/// reach at most. The best of the products within 50 ms.
double measure_matmul_rate(const c10::Device& device, c10::ScalarType type);

}  // namespace lockstep
