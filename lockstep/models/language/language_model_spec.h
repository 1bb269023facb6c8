#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

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

/// Returns gpt-nano, gpt-char, gpt2, gpt2-medium, gpt2-large, gpt2-xl,
/// llama-char, llama-135m, llama-1.1b.
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

}  // namespace lockstep::models
