#include <string>
#include <utility>
#include <vector>

#include "lockstep/lm/models/decoder.h"
#include "lockstep/lm/models/kernels.h"
#include "lockstep/lm/models/norm.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

// Multiplies (..., in) by (out, in) transposed, as torch's linear layers do.
torch::Tensor project(const torch::Tensor& x,
                      const std::shared_ptr<Weight>& weight) {
  return multiply_transposed(x, weight->weight);
}

}  // namespace

/// Llama (Touvron et al. 2023), with RMS norms, rotary positions, a gated layer
/// (SwiGLU), and heads that share keys and values. The parameters are those of
/// Hugging Face's LlamaForCausalLM: model.layers.0.self_attn.q_proj.weight,
/// (width, width), ...
class Llama final : public Decoder {
 public:
  Llama(const LanguageModelSpec& spec, Init init);

 private:
  struct Block {
    std::shared_ptr<Weight> input_norm, q_proj, k_proj, v_proj, o_proj;
    std::shared_ptr<Weight> post_attention_norm, gate_proj, up_proj, down_proj;
  };

  torch::Tensor embed(const torch::Tensor& ids, int64_t past) override;
  torch::Tensor block(int64_t layer, const torch::Tensor& x, int64_t past,
                      KeyValueCache* cache) override;
  std::vector<torch::Tensor> block_parameters(int64_t layer) const override;
  torch::Tensor last_norm(const torch::Tensor& x) override;

  /// Returns x + delta, or x without a delta, and its norm.
  NormedSum add_and_norm(const torch::Tensor& x, const torch::Tensor& delta,
                         const Weight& norm) const;
  torch::Tensor rotate(const torch::Tensor& x, int64_t past) const;

  std::shared_ptr<Weight> norm_;
  std::vector<Block> blocks_;
};

Llama::Llama(const LanguageModelSpec& spec, Init init) : Decoder(spec, init) {
  const int64_t width = spec.width;
  const int64_t inner = spec.inner_width;
  const int64_t shared = width / spec.heads * spec.key_value_heads;
  const auto model = add_module(*this, "model");
  table_ = add_weight(*model, "embed_tokens", {spec.vocabulary, width});
  const auto list = add_module(*model, "layers");
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto part = add_module(*list, std::to_string(layer));
    const auto attention = add_module(*part, "self_attn");
    Block block;
    block.q_proj = add_weight(*attention, "q_proj", {width, width});
    block.k_proj = add_weight(*attention, "k_proj", {shared, width});
    block.v_proj = add_weight(*attention, "v_proj", {shared, width});
    block.o_proj = add_weight(*attention, "o_proj", {width, width},
                              deviation_before_sum());
    const auto mlp = add_module(*part, "mlp");
    block.gate_proj = add_weight(*mlp, "gate_proj", {inner, width});
    block.up_proj = add_weight(*mlp, "up_proj", {inner, width});
    block.down_proj =
        add_weight(*mlp, "down_proj", {width, inner}, deviation_before_sum());
    block.input_norm = add_norm(*part, "input_layernorm");
    block.post_attention_norm = add_norm(*part, "post_attention_layernorm");
    blocks_.push_back(std::move(block));
  }
  norm_ = add_norm(*model, "norm");
  add_head();
}

torch::Tensor Llama::embed(const torch::Tensor& ids, int64_t) {
  return torch::embedding(table_->weight, ids);
}

torch::Tensor Llama::block(int64_t layer, const torch::Tensor& x, int64_t past,
                           KeyValueCache* cache) {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  // (B, T, heads * D) -> (B, heads, T, D)
  const auto in_heads = [&](const torch::Tensor& y, int64_t heads) {
    return y.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
  };
  const auto [stream, normed] = add_and_norm(x, {}, *block.input_norm);
  const auto q =
      rotate(in_heads(project(normed, block.q_proj), spec().heads), past);
  const auto k = rotate(
      in_heads(project(normed, block.k_proj), spec().key_value_heads), past);
  const auto v =
      in_heads(project(normed, block.v_proj), spec().key_value_heads);
  const auto [y, inner] = add_and_norm(
      stream, project(causal_attention(q, k, v, 0, layer, cache), block.o_proj),
      *block.post_attention_norm);
  const auto gated = torch::silu(project(inner, block.gate_proj)) *
                     project(inner, block.up_proj);
  return y + project(gated, block.down_proj);
}

std::vector<torch::Tensor> Llama::block_parameters(int64_t layer) const {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  std::vector<torch::Tensor> parameters;
  for (const auto& part :
       {block.input_norm, block.q_proj, block.k_proj, block.v_proj,
        block.o_proj, block.post_attention_norm, block.gate_proj, block.up_proj,
        block.down_proj}) {
    parameters.push_back(part->weight);
  }
  return parameters;
}

torch::Tensor Llama::last_norm(const torch::Tensor& x) {
  return add_and_norm(x, {}, *norm_).normed;
}

// The norm is x / rms(x) * weight, in float32 (Zhang and Sennrich 2019).
NormedSum Llama::add_and_norm(const torch::Tensor& x,
                              const torch::Tensor& delta,
                              const Weight& norm) const {
  if (has_kernels(x, norm.weight) && spec().width % kKernelWidth == 0) {
    return models::add_and_norm(x, delta, {}, norm.weight, {},
                                spec().norm_epsilon, NormKind::kRms,
                                product_type_on_cpu());
  }
  const auto sum = delta.defined() ? x + delta : x;
  const auto wide = sum.to(torch::kFloat32);
  const auto mean_square = wide.square().mean(-1, /*keepdim=*/true);
  return {sum,
          norm.weight * (wide * torch::rsqrt(mean_square + spec().norm_epsilon))
                            .to(sum.scalar_type())};
}

// Rotates each pair of values d and d + D/2 at position p by the angle
// p * theta^(-2d/D) (Su et al. 2021, in the order of Hugging Face's weights).
// `x` is (B, heads, T, D).
torch::Tensor Llama::rotate(const torch::Tensor& x, int64_t past) const {
  const int64_t half = x.size(3) / 2;
  const auto options = torch::TensorOptions(torch::kFloat32).device(x.device());
  const auto exponents = torch::arange(0, half, options) / half;
  const auto frequencies =
      torch::pow(spec().rope_theta, exponents).reciprocal();
  const auto positions = torch::arange(past, past + x.size(2), options);
  const auto angles = torch::outer(positions, frequencies);  // (T, D/2)
  const auto cosine = angles.cos().to(x.scalar_type());
  const auto sine = angles.sin().to(x.scalar_type());
  const auto low = x.slice(3, 0, half);
  const auto high = x.slice(3, half);
  return torch::cat({low * cosine - high * sine, high * cosine + low * sine},
                    3);
}

std::shared_ptr<LanguageModel> make_llama(const LanguageModelSpec& spec,
                                          Init init) {
  return std::make_shared<Llama>(spec, init);
}

}  // namespace lockstep::models
