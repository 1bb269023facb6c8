#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "lockstep/data/random_stream.h"
#include "lockstep/lm/models/language_model.h"

namespace lockstep::tasks {

/// Options for choosing the next token by its probability.
struct SamplingOptions {
  /// Divisor of the logits. Values below 1 favour likely tokens. 0 takes the
  /// likeliest.
  double temperature = 1;
  int64_t top_k = 0;  ///< number of likeliest tokens to choose from; 0: all
  /// Total probability of the likeliest tokens to choose from (nucleus
  /// sampling, Holtzman et al. 2019).
  double top_p = 1;
};

/// Throws InvalidArgument naming the invalid option.
void check(const SamplingOptions& options);

/// Chooses a token, given the logits (vocabulary) of a model. Takes one number
/// from `random`. Throws InvalidArgument for logits that are not finite.
int64_t sample(const torch::Tensor& logits, const SamplingOptions& options,
               data::RandomStream& random);

struct GenerateOptions {
  int64_t max_tokens = 200;
  SamplingOptions sampling;
  uint64_t seed = 0;
  /// Number of tokens to choose from, the first ones. A model may have more
  /// rows than its tokenizer has tokens. Nothing: all rows.
  std::optional<int64_t> vocabulary{};
  /// The token that ends the text.
  std::optional<int64_t> end;
};

/// Continues `prompt`, which has at least one token. Calls `on_token` with each
/// token as it is chosen, until that returns false, or the end or max_tokens is
/// reached. The same arguments give the same tokens.
///
/// When the model's context is full, the model continues with the last half of
/// it. A token therefore costs one position, and the cache is computed again
/// after each half context.
void generate(models::LanguageModel& model, std::vector<int64_t> prompt,
              const GenerateOptions& options,
              const std::function<bool(int64_t token)>& on_token);

}  // namespace lockstep::tasks
