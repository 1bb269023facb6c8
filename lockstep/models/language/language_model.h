#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/models/language/language_model_spec.h"
#include "lockstep/models/model.h"

namespace lockstep::models {

/// Keys and values of the tokens that a model has seen. With them another token
/// costs one position instead of all.
struct KeyValueCache {
  /// By layer: (B, key/value heads, tokens, width of a head). Empty at first.
  std::vector<torch::Tensor> keys;
  std::vector<torch::Tensor> values;

  int64_t tokens() const { return keys.empty() ? 0 : keys.front().size(2); }
};

/// A decoder, which predicts at each position the token that follows.
///
/// Parameters have the names, shapes and layouts of Hugging Face's
/// GPT2LMHeadModel and LlamaForCausalLM. A tied head is not a separate
/// parameter. clone() also copies a model.
class LanguageModel : public torch::nn::Module {
 public:
  /// Takes (B, T) int64 ids and returns (B, T, vocabulary) logits. Throws
  /// InvalidArgument for other shapes, for more than spec().context tokens, and
  /// on a CPU for ids outside the vocabulary.
  torch::Tensor forward(const torch::Tensor& ids) {
    return logits(hidden(ids));
  }

  /// Computes everything before the last layer: (B, T, width), from which
  /// logits() makes the logits. The tokens of `cache` come before `ids`, which
  /// are added to it.
  torch::Tensor hidden(const torch::Tensor& ids,
                       KeyValueCache* cache = nullptr);
  /// Takes (..., width) and returns (..., vocabulary).
  torch::Tensor logits(const torch::Tensor& hidden) const;
  /// Returns the weight of the last layer, (vocabulary, width). It has no bias.
  virtual torch::Tensor head() const = 0;

  const LanguageModelSpec& spec() const { return spec_; }
  /// Takes effect at the next forward.
  void set_recomputes_activations(bool is_on) {
    spec_.recomputes_activations = is_on;
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 protected:
  explicit LanguageModel(const LanguageModelSpec& spec) : spec_(spec) {}

  /// Takes (B, T) ids that follow `past` tokens and returns (B, T, width).
  virtual torch::Tensor embed(const torch::Tensor& ids, int64_t past) = 0;
  /// Computes block `layer` of (B, T, width), which begins at position `past`.
  /// A null cache means that no tokens come before.
  virtual torch::Tensor block(int64_t layer, const torch::Tensor& x,
                              int64_t past, KeyValueCache* cache) = 0;
  virtual std::vector<torch::Tensor> block_parameters(int64_t layer) const = 0;
  virtual torch::Tensor last_norm(const torch::Tensor& x) = 0;

 private:
  void check_ids(const torch::Tensor& ids, int64_t past) const;

  LanguageModelSpec spec_;
};

/// Builds a model, with weights from LibTorch's default generator as in GPT-2:
/// normal with a deviation of 0.02, and of 0.02 / sqrt(2 layers) before each
/// sum with the residual stream (Radford et al. 2019, section 2.3). With
/// Init::kNone, no number is drawn and no memory is touched. Throws
/// InvalidArgument for an invalid size.
std::shared_ptr<LanguageModel> make_language_model(
    const LanguageModelSpec& spec, Init init = Init::kRandom);

}  // namespace lockstep::models
