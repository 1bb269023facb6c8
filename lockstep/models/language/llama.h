#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include "lockstep/models/language/language_model.h"
#include "lockstep/models/language/weight.h"

namespace lockstep::models {

/// Llama (Touvron et al. 2023), with RMS norms, rotary positions, a gated layer
/// (SwiGLU), and heads that share keys and values. The parameters are those of
/// Hugging Face's LlamaForCausalLM: model.layers.0.self_attn.q_proj.weight,
/// (width, width), ...
class Llama final : public LanguageModel {
 public:
  explicit Llama(const LanguageModelSpec& spec, Init init = Init::kRandom);

  torch::Tensor head() const override;

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

  torch::Tensor norm(const torch::Tensor& x, const Weight& weight) const;
  torch::Tensor rotate(const torch::Tensor& x, int64_t past) const;

  std::shared_ptr<Weight> embed_tokens_, norm_;
  std::shared_ptr<Weight> lm_head_;  // null: tied
  std::vector<Block> blocks_;
};

}  // namespace lockstep::models
