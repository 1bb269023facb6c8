#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/models/language/language_model.h"

namespace lockstep::models {

/// Returns the attention of each token to itself and to the tokens before it:
/// softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, section 3.2). `q` is
/// (B, H, T, D). `k` and `v` are (B, G, T, D), where each of the G heads serves
/// H / G heads of q (Ainslie et al. 2023). With a cache, the cached tokens of
/// `layer` come before these, which are added to the cache. The result is
/// (B, T, H * D).
torch::Tensor causal_attention(const torch::Tensor& q, torch::Tensor k,
                               torch::Tensor v, double dropout, int64_t layer,
                               KeyValueCache* cache);

}  // namespace lockstep::models
