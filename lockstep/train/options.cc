#include "lockstep/train/options.h"

#include <array>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

const std::array<std::pair<Strategy, const char*>, 4> kStrategies{{
    {Strategy::kSingle, "single"},
    {Strategy::kDataParallel, "dp"},
    {Strategy::kDataParallelClassic, "dp-classic"},
    {Strategy::kDistributed, "ddp"},
}};

constexpr std::pair<Precision, const char*> kPrecisions[] = {
    {Precision::kFloat32, "fp32"},
    {Precision::kBFloat16, "bf16"},
    {Precision::kFloat16, "fp16"}};

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& [strategy, name] : kStrategies) names.emplace_back(name);
  return names;
}

Strategy parse_strategy(const std::string& name) {
  for (const auto& [strategy, known] : kStrategies) {
    if (name == known) return strategy;
  }
  throw InvalidArgument("train", {.code = ErrorCode::kUnknownName,
                                  .what = "unknown strategy '" + name + "'",
                                  .fix = did_you_mean(name, strategy_names())});
}

std::string to_string(Strategy strategy) {
  for (const auto& [known, name] : kStrategies) {
    if (known == strategy) return name;
  }
  throw InvalidArgument("train", {.code = ErrorCode::kUnknownName,
                                  .what = "a strategy without a name"});
}

Precision parse_precision(const std::string& name) {
  for (const auto& [precision, known] : kPrecisions) {
    if (name == known) return precision;
  }
  throw InvalidArgument("train",
                        {.code = ErrorCode::kUnknownName,
                         .what = "unknown precision '" + name + "'",
                         .fix = did_you_mean(name, precision_names())});
}

std::vector<std::string> precision_names() {
  std::vector<std::string> names;
  for (const auto& [precision, name] : kPrecisions) names.push_back(name);
  return names;
}

std::string to_string(Precision precision) {
  for (const auto& [known, name] : kPrecisions) {
    if (known == precision) return name;
  }
  throw InvalidArgument("train", {.code = ErrorCode::kUnknownName,
                                  .what = "a precision without a name"});
}

std::optional<c10::ScalarType> autocast_type(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return std::nullopt;
    case Precision::kBFloat16:
      return c10::ScalarType::BFloat16;
    case Precision::kFloat16:
      return c10::ScalarType::Half;
  }
  return std::nullopt;
}

}  // namespace lockstep::train
