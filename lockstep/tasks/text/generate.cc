#include "lockstep/tasks/text/generate.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/random_stream.h"

namespace lockstep::tasks {

void generate(models::LanguageModel& model, std::vector<int64_t> prompt,
              const GenerateOptions& options,
              const std::function<bool(int64_t token)>& on_token) {
  check(options.sampling);
  if (prompt.empty()) {
    throw InvalidArgument("generate", {.code = ErrorCode::kBadOption,
                                       .what = "the prompt is empty",
                                       .expected = "at least one token"});
  }
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const auto context = static_cast<size_t>(model.spec().context);
  const torch::Device device = model.head().device();
  data::RandomStream random(data::StreamUse::kSampling, {options.seed});
  std::vector<int64_t> tokens = std::move(prompt);
  models::KeyValueCache cache;
  size_t in_cache = 0;  // number of `tokens` in the cache
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    if (tokens.size() > context) {
      const size_t kept = std::max<size_t>(1, context / 2);
      tokens.erase(tokens.begin(),
                   tokens.end() - static_cast<std::ptrdiff_t>(kept));
      cache = {};
      in_cache = 0;
    }
    const auto fresh =
        torch::tensor(
            std::vector<int64_t>(
                tokens.begin() + static_cast<std::ptrdiff_t>(in_cache),
                tokens.end()),
            torch::kInt64)
            .unsqueeze(0)
            .to(device);
    const torch::Tensor hidden = model.hidden(fresh, &cache);
    in_cache = tokens.size();
    const torch::Tensor logits =
        model.logits(hidden.select(1, -1))
            .squeeze(0)
            .slice(0, 0, options.vocabulary.value_or(model.spec().vocabulary));
    const int64_t token = sample(logits, options.sampling, random);
    tokens.push_back(token);
    if (!on_token(token) || token == options.end) break;
  }
  model.train(was_training);
}

}  // namespace lockstep::tasks
