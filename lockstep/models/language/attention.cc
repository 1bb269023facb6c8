#include "lockstep/models/language/attention.h"

#include <optional>

#include <ATen/autocast_mode.h>

namespace lockstep::models {
namespace {

// Context length below which LibTorch's attention for CPUs is up to four times
// as fast in float32 as in a half precision, where each of the small products
// sets up a oneDNN primitive. From this length on, both are equally fast.
constexpr int64_t kShortContext = 512;

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
  // A single token may attend to all tokens.
  if (past > 0 && q.size(2) > 1) {
    mask = torch::ones({q.size(2), k.size(2)},
                       torch::TensorOptions(torch::kBool).device(q.device()))
               .tril(past);
  }
  const bool is_widened =
      q.is_cpu() && k.size(2) < kShortContext &&
      (q.scalar_type() == torch::kBFloat16 || q.scalar_type() == torch::kHalf);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  torch::Tensor wide_q = q;
  if (is_widened) {
    no_autocast.emplace(c10::autocast_dispatch_keyset);
    wide_q = q.to(torch::kFloat32);
    k = k.to(torch::kFloat32);
    v = v.to(torch::kFloat32);
  }
  const auto y = at::scaled_dot_product_attention(wide_q, k, v, mask, dropout,
                                                  /*is_causal=*/past == 0);
  return y.transpose(1, 2)
      .reshape({q.size(0), q.size(2), -1})
      .to(q.scalar_type());
}

}  // namespace lockstep::models
