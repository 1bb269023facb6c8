#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/losses/weighted_loss.h"
#include "lockstep/models/model.h"

namespace lockstep::models {

/// The families of language models.
enum class Architecture { kGpt2, kLlama };

/// A specification from which a language model can be built again.
struct LanguageModelSpec {
  std::string name = "gpt-char";  ///< one of language_names()
  Architecture architecture = Architecture::kGpt2;
  int64_t vocabulary = 65;
  int64_t context = 64;  ///< tokens that the model can attend to
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t key_value_heads = 4;  ///< Llama: heads that share keys and values
  int64_t width = 128;
  int64_t inner_width = 512;  ///< width within the layers after the attention
  double dropout = 0;         ///< GPT-2
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;  ///< Llama: the base of the rotary frequencies
  /// True if the weight of the last layer is the table of the tokens.
  bool is_tied = true;
  /// Computes the activations of a block again in the backward, and keeps only
  /// its input. Not a property of the weights.
  bool recomputes_activations = false;

  bool operator==(const LanguageModelSpec&) const = default;
};

/// Returns gpt-nano, gpt-char, gpt-wide, gpt2, gpt2-medium, gpt2-large,
/// gpt2-xl, llama-char, llama-135m, llama-1.1b.
const std::vector<std::string>& language_names();

/// Returns the spec with that name. Throws InvalidArgument, which suggests the
/// nearest, for an unknown name.
LanguageModelSpec language_spec(const std::string& name);

/// Returns the spec as text, for a checkpoint: {"name", "gpt2"}, {"width",
/// "768"}, ...
std::map<std::string, std::string> to_settings(const LanguageModelSpec& spec);

/// Reads what to_settings() returned. Throws InvalidArgument naming a missing
/// or invalid entry.
LanguageModelSpec language_spec_from_settings(
    const std::map<std::string, std::string>& text);

/// Returns the number of elements in all parameters, without building the
/// model.
int64_t count_parameters(const LanguageModelSpec& spec);

/// Returns the floating point operations of forward and backward for a token:
/// six for each element of a matrix, plus those of the attention to a whole
/// context (counted as in Chowdhery et al. 2022, PaLM, appendix B). Work that
/// is repeated to save memory is not counted.
double training_flops_of_token(const LanguageModelSpec& spec);

/// Throws InvalidArgument naming the invalid size.
void check(const LanguageModelSpec& spec);

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
class LanguageModel : public Model {
 public:
  /// Takes (B, T) int64 ids and returns (B, T, vocabulary) logits. Throws
  /// InvalidArgument for other shapes, for more than spec().context tokens, and
  /// on a CPU for ids outside the vocabulary.
  torch::Tensor forward(const torch::Tensor& ids) override {
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

/// Returns `function(input)` without keeping what its backward needs. The
/// backward computes the function again, with the same random numbers and under
/// the same autocast, so the gradients have the same bits (Chen et al. 2016; as
/// in torch.utils.checkpoint). This costs another forward, and only keeps
/// `input` in memory.
///
/// `parameters` are the tensors besides `input` for which the function gets
/// gradients. The function must compute the same both times, and have no side
/// effects.
torch::Tensor activation_checkpoint(
    std::function<torch::Tensor(const torch::Tensor& input)> function,
    const torch::Tensor& input, std::vector<torch::Tensor> parameters);

/// Computes torch's cross_entropy(hidden @ weight^T, targets): the mean over
/// the rows whose target is not -100. Its weight is the number of these rows.
/// Without such rows, the loss and its gradients are 0.
///
/// The logits of all rows never exist at once. `chunk_rows` rows of them, and
/// their gradients, are computed at a time, in the forward. This takes
/// chunk_rows * vocabulary values instead of three times N * vocabulary (as in
/// Hsu et al. 2024, "Liger Kernel", section 3.2). If `chunk_rows` is 0, a chunk
/// has up to 16 Mi logits, or 128 rows. `chunk_rows` changes the rounding.
///
/// `hidden` (N, W) and `weight` (V, W) are on one device; `targets` is (N)
/// int64. Products are computed in autocast's type if autocast is on. The loss
/// and its gradients are summed in float32. The loss is a float32 scalar. Waits
/// for a GPU once.
///
/// Throws InvalidArgument (bad-tensor) for other shapes and types, and for a
/// target that is neither in [0, V) nor -100.
WeightedLoss chunked_cross_entropy(const torch::Tensor& hidden,
                                   const torch::Tensor& weight,
                                   const torch::Tensor& targets,
                                   int64_t chunk_rows = 0);

}  // namespace lockstep::models
