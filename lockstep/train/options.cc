#include "lockstep/train/options.h"

#include <utility>

#include "lockstep/base/names.h"

namespace lockstep::train {
namespace {

constexpr std::pair<Strategy, const char*> kStrategies[] = {
    {Strategy::kSingle, "single"},
    {Strategy::kDataParallel, "dp"},
    {Strategy::kDataParallelClassic, "dp-classic"},
    {Strategy::kDistributed, "ddp"}};

constexpr std::pair<Precision, const char*> kPrecisions[] = {
    {Precision::kFloat32, "fp32"},
    {Precision::kBFloat16, "bf16"},
    {Precision::kFloat16, "fp16"}};

}  // namespace

Strategy parse_strategy(const std::string& name) {
  return value_named(Names<Strategy>(kStrategies), "strategy", name);
}
std::vector<std::string> strategy_names() {
  return all_names(Names<Strategy>(kStrategies));
}
std::string to_string(Strategy strategy) {
  return name_of(Names<Strategy>(kStrategies), "a strategy", strategy);
}

Precision parse_precision(const std::string& name) {
  return value_named(Names<Precision>(kPrecisions), "precision", name);
}
std::vector<std::string> precision_names() {
  return all_names(Names<Precision>(kPrecisions));
}
std::string to_string(Precision precision) {
  return name_of(Names<Precision>(kPrecisions), "a precision", precision);
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
