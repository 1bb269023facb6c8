#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>

namespace lockstep {

// Loops over arrays of float and bfloat16, compiled for AVX-512, AVX2 and other
// processors. All of them give the same bits.

/// Converts bfloat16 to float.
void widen(const c10::BFloat16* from, float* to, int64_t count);

/// Computes sum[i] = a[i] + b[i] in float. `sum` may be `a`.
void add_wide(const c10::BFloat16* a, const c10::BFloat16* b, float* sum,
              int64_t count);
void add_wide(const float* a, const c10::BFloat16* b, float* sum,
              int64_t count);

/// Rounds to the nearest bfloat16, ties to even, as Tensor::to() does. A NaN
/// becomes the NaN 0x7fc0.
void narrow(const float* from, c10::BFloat16* to, int64_t count);

/// Returns whether narrow(from) gives exactly the bits of `to`.
bool is_narrowed(const float* from, const c10::BFloat16* to, int64_t count);

}  // namespace lockstep
