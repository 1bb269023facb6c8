#include "lockstep/tools/comparison/step_limit.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/median.h"

namespace lockstep::tools {
namespace {

double number(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = fmt::format("a limit has no '{}'", key),
                   .expected = "a number"});
  }
  return found->get<double>();
}

double median_of(const std::vector<StepLimit>& rounds, const auto& value_of) {
  std::vector<double> values;
  for (const StepLimit& round : rounds) values.push_back(value_of(round));
  return median(std::move(values));
}

}  // namespace

std::optional<StepLimit> pool_limits(const std::vector<StepLimit>& rounds,
                                     double step_s) {
  if (rounds.empty()) return std::nullopt;
  StepLimit pooled = rounds.front();
  pooled.step_s = step_s;
  // The step and the products of a round ran one right after the other, so
  // their ratio depends less on how busy the machine was than either of them.
  pooled.products_alone_s =
      step_s *
      median_of(rounds, [](const StepLimit& round) { return round.share(); });
  pooled.bytes_per_s = median_of(
      rounds, [](const StepLimit& round) { return round.bytes_per_s; });
  for (const StepPart& part : kStepParts) {
    double sum = 0;
    for (const StepLimit& round : rounds) {
      sum += round.step_s > 0 ? round.parts.*part.seconds / round.step_s : 0;
    }
    pooled.parts.*part.seconds =
        step_s * sum / static_cast<double>(rounds.size());
  }
  return pooled;
}

nlohmann::json to_json(const StepLimit& limit) {
  nlohmann::json parts = nlohmann::json::object();
  for (const StepPart& part : kStepParts) {
    parts[part.key] = limit.parts.*part.seconds;
  }
  return {{"share", limit.share()},
          {"step_s", limit.step_s},
          {"products_alone_s", limit.products_alone_s},
          {"parts_s", std::move(parts)},
          {"products", limit.products},
          {"flops", limit.flops},
          {"bytes", limit.bytes},
          {"bytes_per_s", limit.bytes_per_s},
          {"memory_s", limit.memory_s()}};
}

StepLimit step_limit_from_json(const nlohmann::json& json) {
  StepLimit limit{.step_s = number(json, "step_s"),
                  .products_alone_s = number(json, "products_alone_s"),
                  .parts = {},
                  .products = static_cast<int64_t>(number(json, "products")),
                  .flops = number(json, "flops"),
                  .bytes = number(json, "bytes"),
                  .bytes_per_s = number(json, "bytes_per_s")};
  const auto parts = json.value("parts_s", nlohmann::json::object());
  for (const StepPart& part : kStepParts) {
    limit.parts.*part.seconds = number(parts, part.key);
  }
  return limit;
}

}  // namespace lockstep::tools
