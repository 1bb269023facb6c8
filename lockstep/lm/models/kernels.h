#pragma once

#include <algorithm>
#include <cstdint>

#include <torch/types.h>

#include "lockstep/device/simd.h"

namespace lockstep::models {

/// The widths that the kernels take are multiples of this.
constexpr int64_t kKernelWidth = 16;

/// Gradients of vectors are summed over blocks of this many rows.
constexpr int64_t kRowsOfSum = 64;

/// Returns the number of these blocks.
inline int64_t sum_blocks(int64_t rows) {
  return (rows + kRowsOfSum - 1) / kRowsOfSum;
}

/// Calls visit(block, row) for each row of the blocks from `first` to `last`,
/// in order.
template <class Visit>
LOCKSTEP_INLINE void for_rows_of_blocks(int64_t first, int64_t last,
                                        int64_t rows, Visit visit) {
  for (int64_t block = first; block < last; ++block) {
    const int64_t end = std::min((block + 1) * kRowsOfSum, rows);
    for (int64_t row = block * kRowsOfSum; row < end; ++row) visit(block, row);
  }
}

/// Calls use(T{}) with the C++ type of float32 or bfloat16.
template <class Use>
void with_type(torch::ScalarType type, const Use& use) {
  if (type == torch::kFloat32) {
    use(float{});
  } else {
    use(c10::BFloat16{});
  }
}

/// Returns the type in which autocast computes products of float32 tensors on
/// a CPU: float32 if it is off.
torch::ScalarType product_type_on_cpu();

/// Returns true if the kernels of the language models can take `x`, a residual
/// stream, and parameters of `weight`'s type: both are float32 on a CPU, and
/// autocast is off or computes in bfloat16. The other devices and types have
/// LibTorch's operators.
bool has_kernels(const torch::Tensor& x, const torch::Tensor& weight);

/// Adds the rows of (N, W) one after another.
torch::Tensor sum_in_order(const torch::Tensor& rows);

}  // namespace lockstep::models
