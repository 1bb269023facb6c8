#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/models/language/language_model.h"
#include "lockstep/tasks/text/sampling.h"

namespace lockstep::tasks {

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
