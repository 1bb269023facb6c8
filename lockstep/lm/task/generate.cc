#include "lockstep/lm/task/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::tasks {
namespace {

[[noreturn]] void refuse(const char* what, const char* expected, double got) {
  throw InvalidArgument("generate", {.code = ErrorCode::kBadOption,
                                     .what = what,
                                     .expected = expected,
                                     .got = fmt::format("{}", got)});
}

/// Returns a uniform number in [0, 1), from the 53 bits that a double holds.
double uniform(data::RandomStream& random) {
  return static_cast<double>(random.next() >> 11) * 0x1p-53;
}

}  // namespace

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    refuse("the temperature can't be used", "a finite number of at least 0",
           options.temperature);
  }
  if (options.top_k < 0) {
    refuse("top-k can't be used", "at least 0",
           static_cast<double>(options.top_k));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    refuse("top-p can't be used", "above 0, and at most 1", options.top_p);
  }
}

int64_t sample(const torch::Tensor& logits, const SamplingOptions& options,
               data::RandomStream& random) {
  const double drawn = uniform(random);
  const auto values =
      logits.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  const std::vector<double> scores(values.data_ptr<double>(),
                                   values.data_ptr<double>() + values.numel());
  const bool are_finite =
      std::all_of(scores.begin(), scores.end(),
                  [](double score) { return std::isfinite(score); });
  if (scores.empty() || !are_finite) {
    throw InvalidArgument(
        "generate", {.code = ErrorCode::kBadTensor,
                     .what = "the model's logits are not finite",
                     .fix = "its weights are damaged, or it has diverged"});
  }
  // By descending score. The smaller of two ids with equal scores comes first,
  // so that the order is the same everywhere.
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto score = [&](int64_t id) {
    return scores[static_cast<size_t>(id)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return score(a) > score(b); });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && order.size() > static_cast<size_t>(options.top_k)) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  std::vector<double> weights;
  for (const int64_t id : order) {
    weights.push_back(
        std::exp((score(id) - score(order.front())) / options.temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t kept = 0;
  double total = 0;
  while (kept < weights.size() && (kept == 0 || total < options.top_p * all)) {
    total += weights[kept++];
  }
  double left = drawn * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

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
