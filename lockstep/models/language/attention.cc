#include "lockstep/models/language/attention.h"

#include <optional>

namespace lockstep::models {
namespace {

void append(torch::Tensor& cached, torch::Tensor& fresh) {
  if (cached.defined()) fresh = torch::cat({cached, fresh}, 2);
  cached = fresh;
}

}  // namespace

torch::Tensor causal_attention(const torch::Tensor& q, torch::Tensor k,
                               torch::Tensor v, double dropout, int64_t layer,
                               KeyValueCache* cache) {
  if (cache != nullptr) {
    append(cache->keys[static_cast<size_t>(layer)], k);
    append(cache->values[static_cast<size_t>(layer)], v);
  }
  const int64_t repeats = q.size(1) / k.size(1);
  if (repeats > 1) {
    k = k.repeat_interleave(repeats, 1);
    v = v.repeat_interleave(repeats, 1);
  }
  const int64_t past = k.size(2) - q.size(2);
  std::optional<torch::Tensor> mask;
  // A single token may look at all that there are.
  if (past > 0 && q.size(2) > 1) {
    mask = torch::ones({q.size(2), k.size(2)},
                       torch::TensorOptions(torch::kBool).device(q.device()))
               .tril(past);
  }
  const auto y = at::scaled_dot_product_attention(q, k, v, mask, dropout,
                                                  /*is_causal=*/past == 0);
  return y.transpose(1, 2).reshape({q.size(0), q.size(2), -1});
}

}  // namespace lockstep::models
