#include "lockstep/models/language/gpt.h"

#include <cmath>
#include <string>

#include "lockstep/models/language/attention.h"
#include "lockstep/models/language/gelu.h"

namespace lockstep::models {
namespace {

// Multiplies (..., in) by (in, out), the layout of GPT-2's weights.
torch::Tensor project(const torch::Tensor& x, const Weight& weight) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.weight.size(1);
  return torch::addmm(weight.bias, x.reshape({-1, x.size(-1)}), weight.weight)
      .view(sizes);
}

}  // namespace

Gpt::Gpt(const LanguageModelSpec& spec, Init init) : LanguageModel(spec) {
  const int64_t width = spec.width;
  const double before_sum =
      0.02 / std::sqrt(2 * static_cast<double>(spec.layers));
  const auto add = [&](torch::nn::Module& parent, const char* name,
                       std::initializer_list<int64_t> shape,
                       const Weight::Values& values) {
    return parent.register_module(
        name, std::make_shared<Weight>(shape, values, init));
  };
  const auto add_norm = [&](torch::nn::Module& parent, const char* name) {
    return parent.register_module(name, norm_weight(width, true, init));
  };

  const auto transformer =
      register_module("transformer", std::make_shared<torch::nn::Module>());
  wte_ = add(*transformer, "wte", {spec.vocabulary, width}, {});
  wpe_ = add(*transformer, "wpe", {spec.context, width}, {});
  const auto list =
      transformer->register_module("h", std::make_shared<torch::nn::Module>());
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto part = list->register_module(
        std::to_string(layer), std::make_shared<torch::nn::Module>());
    Block block;
    block.ln_1 = add_norm(*part, "ln_1");
    const auto attention =
        part->register_module("attn", std::make_shared<torch::nn::Module>());
    block.c_attn =
        add(*attention, "c_attn", {width, 3 * width}, {.bias = 3 * width});
    block.attn_c_proj = add(*attention, "c_proj", {width, width},
                            {.deviation = before_sum, .bias = width});
    block.ln_2 = add_norm(*part, "ln_2");
    const auto mlp =
        part->register_module("mlp", std::make_shared<torch::nn::Module>());
    block.c_fc = add(*mlp, "c_fc", {width, spec.inner_width},
                     {.bias = spec.inner_width});
    block.mlp_c_proj = add(*mlp, "c_proj", {spec.inner_width, width},
                           {.deviation = before_sum, .bias = width});
    blocks_.push_back(std::move(block));
  }
  ln_f_ = add_norm(*transformer, "ln_f");
  if (!spec.is_tied)
    lm_head_ = add(*this, "lm_head", {spec.vocabulary, width}, {});
}

torch::Tensor Gpt::head() const {
  return lm_head_ ? lm_head_->weight : wte_->weight;
}

torch::Tensor Gpt::embed(const torch::Tensor& ids, int64_t past) {
  const auto places = wpe_->weight.slice(0, past, past + ids.size(1));
  return dropout(torch::embedding(wte_->weight, ids) + places);
}

torch::Tensor Gpt::block(int64_t layer, const torch::Tensor& x, int64_t,
                         KeyValueCache* cache) {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  const double attention_dropout = is_training() ? spec().dropout : 0;
  // (B, T, 3 width) -> three of (B, H, T, D)
  const auto qkv = project(norm(x, *block.ln_1), *block.c_attn)
                       .view({x.size(0), x.size(1), 3, spec().heads, -1})
                       .permute({2, 0, 3, 1, 4})
                       .unbind(0);
  const auto attended =
      causal_attention(qkv[0], qkv[1], qkv[2], attention_dropout, layer, cache);
  const auto y = x + dropout(project(attended, *block.attn_c_proj));
  const auto inner = tanh_gelu(project(norm(y, *block.ln_2), *block.c_fc));
  return y + dropout(project(inner, *block.mlp_c_proj));
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

torch::Tensor Gpt::last_norm(const torch::Tensor& x) { return norm(x, *ln_f_); }

torch::Tensor Gpt::norm(const torch::Tensor& x, const Weight& weight) const {
  return torch::layer_norm(x, {spec().width}, weight.weight, weight.bias,
                           spec().norm_epsilon);
}

torch::Tensor Gpt::dropout(const torch::Tensor& x) const {
  return spec().dropout == 0 ? x
                             : torch::dropout(x, spec().dropout, is_training());
}

}  // namespace lockstep::models
