#include <string>
#include <utility>
#include <vector>

#include "lockstep/device/autocast.h"
#include "lockstep/lm/models/decoder.h"
#include "lockstep/lm/models/fused_attention.h"
#include "lockstep/lm/models/gelu.h"
#include "lockstep/lm/models/kernels.h"
#include "lockstep/lm/models/norm.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

// Returns x times the weight, without the bias. Another kernel adds it.
torch::Tensor multiply(const torch::Tensor& x, const Weight& weight) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.weight.size(1);
  return product(
             [](const torch::Tensor& rows, const torch::Tensor& matrix) {
               return torch::mm(rows, matrix);
             },
             x.reshape({-1, x.size(-1)}), weight.weight)
      .view(sizes);
}

// Returns a bias as the kernels read it. Replicas may have it in bfloat16.
torch::Tensor wide(const torch::Tensor& bias) {
  return bias.to(torch::kFloat32);
}

// Multiplies (..., in) by (in, out), the layout of GPT-2's weights.
torch::Tensor project(const torch::Tensor& x, const Weight& weight) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.weight.size(1);
  return product(
             [](const torch::Tensor& bias, const torch::Tensor& rows,
                const torch::Tensor& matrix) {
               return torch::addmm(bias, rows, matrix);
             },
             weight.bias, x.reshape({-1, x.size(-1)}), weight.weight)
      .view(sizes);
}

}  // namespace

/// GPT-2 (Radford et al. 2019), with the parameters of Hugging Face's
/// GPT2LMHeadModel: transformer.h.0.attn.c_attn.weight, (width, 3 width), ...
class Gpt final : public Decoder {
 public:
  Gpt(const LanguageModelSpec& spec, Init init);

 private:
  struct Block {
    std::shared_ptr<Weight> ln_1, c_attn, attn_c_proj, ln_2, c_fc, mlp_c_proj;
  };

  torch::Tensor embed(const torch::Tensor& ids, int64_t past) override;
  torch::Tensor block(int64_t layer, const torch::Tensor& x, int64_t past,
                      KeyValueCache* cache) override;
  std::vector<torch::Tensor> block_parameters(int64_t layer) const override;
  torch::Tensor last_norm(const torch::Tensor& x) override;

  /// Compute a block with kernels that each do the work of several operators,
  /// or with LibTorch's operators.
  torch::Tensor fused_block(const Block& block, const torch::Tensor& x) const;
  torch::Tensor plain_block(const Block& block, int64_t layer,
                            const torch::Tensor& x, KeyValueCache* cache) const;

  NormedSum add_and_norm(const torch::Tensor& x, const torch::Tensor& delta,
                         const torch::Tensor& bias, const Weight& norm) const;
  torch::Tensor plain_norm(const torch::Tensor& x, const Weight& weight) const;
  torch::Tensor attention(const torch::Tensor& qkv, int64_t layer,
                          KeyValueCache* cache) const;
  torch::Tensor dropout(const torch::Tensor& x) const;

  std::shared_ptr<Weight> wpe_, ln_f_;
  std::vector<Block> blocks_;
};

Gpt::Gpt(const LanguageModelSpec& spec, Init init) : Decoder(spec, init) {
  const int64_t width = spec.width;
  const int64_t inner = spec.inner_width;
  const auto transformer = add_module(*this, "transformer");
  table_ = add_weight(*transformer, "wte", {spec.vocabulary, width});
  wpe_ = add_weight(*transformer, "wpe", {spec.context, width});
  const auto list = add_module(*transformer, "h");
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto part = add_module(*list, std::to_string(layer));
    Block block;
    block.ln_1 = add_norm(*part, "ln_1");
    const auto attention = add_module(*part, "attn");
    block.c_attn = add_weight(*attention, "c_attn", {width, 3 * width},
                              kDeviation, 3 * width);
    block.attn_c_proj = add_weight(*attention, "c_proj", {width, width},
                                   deviation_before_sum(), width);
    block.ln_2 = add_norm(*part, "ln_2");
    const auto mlp = add_module(*part, "mlp");
    block.c_fc = add_weight(*mlp, "c_fc", {width, inner}, kDeviation, inner);
    block.mlp_c_proj = add_weight(*mlp, "c_proj", {inner, width},
                                  deviation_before_sum(), width);
    blocks_.push_back(std::move(block));
  }
  ln_f_ = add_norm(*transformer, "ln_f");
  add_head();
}

torch::Tensor Gpt::embed(const torch::Tensor& ids, int64_t past) {
  const auto places = wpe_->weight.slice(0, past, past + ids.size(1));
  return dropout(torch::embedding(table_->weight, ids) + places);
}

torch::Tensor Gpt::block(int64_t layer, const torch::Tensor& x, int64_t,
                         KeyValueCache* cache) {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  const bool has_dropout = is_training() && spec().dropout > 0;
  const bool is_fused = cache == nullptr && !has_dropout &&
                        has_kernels(x, block.ln_1->weight) &&
                        has_fused_attention(spec().width / spec().heads) &&
                        spec().inner_width % kKernelWidth == 0;
  return is_fused ? fused_block(block, x) : plain_block(block, layer, x, cache);
}

torch::Tensor Gpt::fused_block(const Block& block,
                               const torch::Tensor& x) const {
  const NormedSum first = add_and_norm(x, {}, {}, *block.ln_1);
  torch::Tensor attended;
  if (x.size(1) < kShortContext) {
    attended = fused_attention(multiply(first.normed, *block.c_attn),
                               wide(block.c_attn->bias), spec().heads);
  } else {
    attended = attention(project(first.normed, *block.c_attn), 0, nullptr);
  }
  const NormedSum second =
      add_and_norm(first.sum, multiply(attended, *block.attn_c_proj),
                   wide(block.attn_c_proj->bias), *block.ln_2);
  const auto inner = product(
      [&](const torch::Tensor& rows, const torch::Tensor& weight) {
        return linear_gelu(rows, cast_for_products(weight),
                           wide(block.c_fc->bias));
      },
      second.normed, block.c_fc->weight);
  return add_with_bias(second.sum, multiply(inner, *block.mlp_c_proj),
                       wide(block.mlp_c_proj->bias));
}

torch::Tensor Gpt::plain_block(const Block& block, int64_t layer,
                               const torch::Tensor& x,
                               KeyValueCache* cache) const {
  const auto attended = attention(
      project(plain_norm(x, *block.ln_1), *block.c_attn), layer, cache);
  const auto y = x + dropout(project(attended, *block.attn_c_proj));
  const auto inner =
      tanh_gelu(project(plain_norm(y, *block.ln_2), *block.c_fc));
  return y + dropout(project(inner, *block.mlp_c_proj));
}

torch::Tensor Gpt::attention(const torch::Tensor& qkv, int64_t layer,
                             KeyValueCache* cache) const {
  const double attention_dropout = is_training() ? spec().dropout : 0;
  // (B, T, 3 width) -> three of (B, H, T, D)
  const auto parts = qkv.view({qkv.size(0), qkv.size(1), 3, spec().heads, -1})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  return causal_attention(parts[0], parts[1], parts[2], attention_dropout,
                          layer, cache);
}

std::vector<torch::Tensor> Gpt::block_parameters(int64_t layer) const {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  std::vector<torch::Tensor> parameters;
  for (const auto& part : {block.ln_1, block.c_attn, block.attn_c_proj,
                           block.ln_2, block.c_fc, block.mlp_c_proj}) {
    parameters.push_back(part->weight);
    parameters.push_back(part->bias);
  }
  return parameters;
}

torch::Tensor Gpt::last_norm(const torch::Tensor& x) {
  const bool is_fused =
      has_kernels(x, ln_f_->weight) && spec().width % kKernelWidth == 0;
  return is_fused ? add_and_norm(x, {}, {}, *ln_f_).normed
                  : plain_norm(x, *ln_f_);
}

NormedSum Gpt::add_and_norm(const torch::Tensor& x, const torch::Tensor& delta,
                            const torch::Tensor& bias,
                            const Weight& norm) const {
  return models::add_and_norm(x, delta, bias, norm.weight, norm.bias,
                              spec().norm_epsilon, NormKind::kLayer,
                              product_type_on_cpu());
}

torch::Tensor Gpt::plain_norm(const torch::Tensor& x,
                              const Weight& weight) const {
  return torch::layer_norm(x, {spec().width}, weight.weight, weight.bias,
                           spec().norm_epsilon);
}

torch::Tensor Gpt::dropout(const torch::Tensor& x) const {
  return spec().dropout == 0 ? x
                             : torch::dropout(x, spec().dropout, is_training());
}

std::shared_ptr<LanguageModel> make_gpt(const LanguageModelSpec& spec,
                                        Init init) {
  return std::make_shared<Gpt>(spec, init);
}

}  // namespace lockstep::models
