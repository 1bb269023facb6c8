// Operators that LibTorch composes of other ones for a device type that it
// doesn't know than for the CPU. Here they are composed as on the CPU, so that
// they have its bits.
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

namespace lockstep::sim {
namespace {

using at::Tensor;

/// Returns what dropout multiplies `input` by. The fused operator, which
/// LibTorch takes for PrivateUse1, has no generator.
Tensor noise_like(const Tensor& input, double p) {
  if (p == 1) return at::zeros_like(input, at::MemoryFormat::Contiguous);
  Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  return noise.div_(1 - p);
}

bool drops(const Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be from 0 to 1");
  return train && p > 0 && input.numel() > 0;
}

Tensor dropout(const Tensor& input, double p, bool train) {
  return drops(input, p, train) ? input * noise_like(input, p) : input;
}

Tensor& dropout_(Tensor& input, double p, bool train) {
  if (drops(input, p, train)) input.mul_(noise_like(input, p));
  return input;
}

/// Returns a tensor of the CPU that looks as `tensor` does.
Tensor twin_of(const Tensor& tensor) {
  Tensor twin = at::empty_strided(tensor.sizes(), tensor.strides(),
                                  tensor.options().device(at::kCPU));
  return twin.set_requires_grad(tensor.requires_grad());
}

/// Returns a mask of booleans as numbers to add.
std::optional<Tensor> mask_to_add(const std::optional<Tensor>& mask,
                                  at::ScalarType type) {
  if (!mask || !mask->defined() || mask->scalar_type() != at::kBool) {
    return mask;
  }
  return at::zeros_like(*mask, type)
      .masked_fill_(mask->logical_not(),
                    -std::numeric_limits<double>::infinity());
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& mask, double dropout_p,
                 bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const auto added = mask_to_add(mask, query.scalar_type());
  const auto twin_of_mask =
      added && added->defined() ? std::optional(twin_of(*added)) : std::nullopt;
  const auto choice = at::_fused_sdp_choice(
      twin_of(query), twin_of(key), twin_of(value), twin_of_mask, dropout_p,
      is_causal, scale, enable_gqa);
  if (choice == static_cast<int64_t>(sdp::SDPBackend::flash_attention)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, added, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, added, dropout_p, is_causal, std::nullopt, scale,
      enable_gqa));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("dropout", &dropout);
  library.impl("dropout_", &dropout_);
  library.impl("scaled_dot_product_attention", &attention);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("dropout", &dropout);
  library.impl("dropout_", &dropout_);
  library.impl("scaled_dot_product_attention", &attention);
}

}  // namespace
}  // namespace lockstep::sim
