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
  /// Tokens to choose from, the first ones: a model may have more rows than
  /// its tokenizer has tokens. Nothing: all rows.
  std::optional<int64_t> vocabulary{};
  /// The token behind which nothing comes.
  std::optional<int64_t> end;
};

/// Continues `prompt`, at least one token, and calls `on_token` with each token
/// as it is chosen, until that returns false, or the end or max_tokens is
/// reached. The same arguments give the same tokens.
///
/// The model sees what it can of prompt and tokens: when its context is full,
/// it goes on with the last half of it. So a token costs one position, and the
/// cache is computed anew after each half context.
void generate(models::LanguageModel& model, std::vector<int64_t> prompt,
              const GenerateOptions& options,
              const std::function<bool(int64_t token)>& on_token);

}  // namespace lockstep::tasks
