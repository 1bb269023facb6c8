#pragma once

#include <cstdint>

#include <torch/types.h>

namespace lockstep::models {

/// Returns true if fused_attention() can take heads of this width.
bool has_fused_attention(int64_t head_width);

/// Returns softmax(q k^T / sqrt(D)) v, where each token attends to itself and
/// to the tokens before it (Vaswani et al. 2017, section 3.2). `qkv` is
/// (B, T, 3 W), in float32 or bfloat16: the queries of all heads, the keys and
/// the values, to which the float32 `bias` (3 W) is added. The result is
/// (B, T, W).
///
/// All is computed in float32, from rows of a head that stay in the cache: sums
/// of the products run over their inner dimension in order, and those of a
/// softmax are 16 interleaved sums. No matrix is split or transposed in memory.
/// The gradient of the bias is summed over the tokens of a sequence, and then
/// over the sequences. So the bits depend neither on the threads nor on the
/// processor.
torch::Tensor fused_attention(const torch::Tensor& qkv,
                              const torch::Tensor& bias, int64_t heads);

}  // namespace lockstep::models
