#include "lockstep/lm/models/decoder.h"

#include <cmath>
#include <optional>

#include "lockstep/device/autocast.h"
#include "lockstep/models/parameter_budget.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

void append(torch::Tensor& cached, torch::Tensor& fresh) {
  if (cached.defined()) fresh = torch::cat({cached, fresh}, 2);
  cached = fresh;
}

// Adds a weight that is not initialised.
std::shared_ptr<Weight> add_empty(torch::nn::Module& parent, const char* name,
                                  std::initializer_list<int64_t> shape,
                                  int64_t bias) {
  const auto part = std::make_shared<Weight>();
  ParameterBudget::spend(shape);
  part->weight = part->register_parameter("weight", torch::empty(shape));
  if (bias > 0) {
    ParameterBudget::spend({bias});
    part->bias = part->register_parameter("bias", torch::empty({bias}));
  }
  return parent.register_module(name, part);
}

}  // namespace

std::shared_ptr<Weight> Decoder::add_weight(
    Module& parent, const char* name, std::initializer_list<int64_t> shape,
    double deviation, int64_t bias) const {
  const auto part = add_empty(parent, name, shape, bias);
  if (init_ == Init::kNone) return part;
  const torch::NoGradGuard no_grad;
  part->weight.normal_(0, deviation);
  if (part->bias.defined()) part->bias.zero_();
  return part;
}

std::shared_ptr<Weight> Decoder::add_norm(Module& parent,
                                          const char* name) const {
  const bool has_bias = spec().architecture == Architecture::kGpt2;
  const auto part =
      add_empty(parent, name, {spec().width}, has_bias ? spec().width : 0);
  if (init_ == Init::kNone) return part;
  const torch::NoGradGuard no_grad;
  part->weight.fill_(1);
  if (has_bias) part->bias.zero_();
  return part;
}

void Decoder::add_head() {
  if (spec().is_tied) return;
  lm_head_ = add_weight(*this, "lm_head", {spec().vocabulary, spec().width});
}

double Decoder::deviation_before_sum() const {
  return kDeviation / std::sqrt(2 * static_cast<double>(spec().layers));
}

torch::Tensor Decoder::causal_attention(const torch::Tensor& q, torch::Tensor k,
                                        torch::Tensor v, double dropout,
                                        int64_t layer, KeyValueCache* cache) {
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
      q.is_cpu() && (k.size(2) < kShortContext || has_rounded_products()) &&
      (q.scalar_type() == torch::kBFloat16 || q.scalar_type() == torch::kHalf);
  std::optional<NoAutocast> no_autocast;
  torch::Tensor wide_q = q;
  if (is_widened) {
    no_autocast.emplace();
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
