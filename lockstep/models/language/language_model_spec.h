#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::models {

/// The families of language models.
enum class Architecture { kGpt2, kLlama };

/// Everything needed to build a language model anew.
struct LanguageModelSpec {
  std::string name = "gpt-char";  ///< what it is called, of language_names()
  Architecture architecture = Architecture::kGpt2;
  int64_t vocabulary = 65;
  int64_t context = 64;  ///< tokens that it can look at
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t key_value_heads = 4;  ///< Llama: heads that share keys and values
  int64_t width = 128;
  int64_t inner_width = 512;  ///< of the two layers behind the attention
  double dropout = 0;         ///< GPT-2
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;  ///< Llama: the base of the rotary frequencies
  /// The last layer's weight is the table of the tokens.
  bool is_tied = true;
  /// Compute the activations of a block again in the backward, and keep its
  /// input alone. Not a property of the weights.
  bool recomputes_activations = false;

  bool operator==(const LanguageModelSpec&) const = default;
};

/// gpt-nano, gpt-char, gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-char,
/// llama-135m, llama-1.1b.
const std::vector<std::string>& language_names();

/// The spec of that name. Throws InvalidArgument for an unknown one, suggesting
/// the nearest.
LanguageModelSpec language_spec(const std::string& name);

/// As text, for a checkpoint: {"name", "gpt2"}, {"width", "768"}, ...
std::map<std::string, std::string> to_settings(const LanguageModelSpec& spec);

/// The way back. Throws InvalidArgument naming what is missing or can't be.
LanguageModelSpec language_spec_from_settings(
    const std::map<std::string, std::string>& text);

/// The sum of the elements of all parameters, without building the model.
int64_t count_parameters(const LanguageModelSpec& spec);

/// Floating point operations for a token in forward and backward: six for each
/// element of a matrix, and those of the attention to a whole context (as
/// Chowdhery et al. 2022 count them, PaLM, appendix B). What is computed once
/// more to save memory does not count.
double training_flops_of_token(const LanguageModelSpec& spec);

/// Throws InvalidArgument naming the size that can't be.
void check(const LanguageModelSpec& spec);

}  // namespace lockstep::models
