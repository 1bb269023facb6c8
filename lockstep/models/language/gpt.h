#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include "lockstep/models/language/language_model.h"
#include "lockstep/models/language/weight.h"

namespace lockstep::models {

/// GPT-2 (Radford et al. 2019), with the parameters of Hugging Face's
/// GPT2LMHeadModel: transformer.h.0.attn.c_attn.weight, (width, 3 width), ...
class Gpt final : public LanguageModel {
 public:
  explicit Gpt(const LanguageModelSpec& spec, Init init = Init::kRandom);

  torch::Tensor head() const override;

 private:
  struct Block {
    std::shared_ptr<Weight> ln_1, c_attn, attn_c_proj, ln_2, c_fc, mlp_c_proj;
  };

  torch::Tensor embed(const torch::Tensor& ids, int64_t past) override;
  torch::Tensor block(int64_t layer, const torch::Tensor& x, int64_t past,
                      KeyValueCache* cache) override;
  std::vector<torch::Tensor> block_parameters(int64_t layer) const override;
  torch::Tensor last_norm(const torch::Tensor& x) override;

  torch::Tensor norm(const torch::Tensor& x, const Weight& weight) const;
  torch::Tensor dropout(const torch::Tensor& x) const;

  std::shared_ptr<Weight> wte_, wpe_, ln_f_;
  std::shared_ptr<Weight> lm_head_;  // null: tied
  std::vector<Block> blocks_;
};

}  // namespace lockstep::models
