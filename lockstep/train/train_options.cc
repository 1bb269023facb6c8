// The names of values in options.
#include "lockstep/train/train_options.h"

#include <utility>

#include "lockstep/base/names.h"

namespace lockstep::training {
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

constexpr std::pair<GradCompression, const char*> kCompressions[] = {
    {GradCompression::kNone, "none"},
    {GradCompression::kBFloat16, "bf16"},
    {GradCompression::kFloat16, "fp16"},
    {GradCompression::kPowerSgd, "powersgd"}};

constexpr std::pair<OuterOptimizer, const char*> kOuterOptimizers[] = {
    {OuterOptimizer::kAverage, "average"},
    {OuterOptimizer::kNesterov, "nesterov"}};

constexpr std::pair<OnSpike, const char*> kActions[] = {
    {OnSpike::kNothing, "nothing"},
    {OnSpike::kSkip, "skip"},
    {OnSpike::kRollBack, "roll-back"}};

}  // namespace

Strategy parse_strategy(const std::string& name) {
  return value_named<Strategy>(kStrategies, "strategy", name);
}
std::vector<std::string> strategy_names() {
  return all_names<Strategy>(kStrategies);
}
std::string to_string(Strategy strategy) {
  return name_of<Strategy>(kStrategies, "a strategy", strategy);
}

Precision parse_precision(const std::string& name) {
  return value_named<Precision>(kPrecisions, "precision", name);
}
std::vector<std::string> precision_names() {
  return all_names<Precision>(kPrecisions);
}
std::string to_string(Precision precision) {
  return name_of<Precision>(kPrecisions, "a precision", precision);
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

GradCompression parse_grad_compression(const std::string& name) {
  return value_named<GradCompression>(kCompressions, "compression", name);
}
std::vector<std::string> grad_compression_names() {
  return all_names<GradCompression>(kCompressions);
}
std::string to_string(GradCompression compression) {
  return name_of<GradCompression>(kCompressions, "a compression", compression);
}

OuterOptimizer parse_outer_optimizer(const std::string& name) {
  return value_named<OuterOptimizer>(kOuterOptimizers, "outer optimizer", name);
}
std::vector<std::string> outer_optimizer_names() {
  return all_names<OuterOptimizer>(kOuterOptimizers);
}
std::string to_string(OuterOptimizer optimizer) {
  return name_of<OuterOptimizer>(kOuterOptimizers, "an outer optimizer",
                                 optimizer);
}

OnSpike parse_on_spike(const std::string& name) {
  return value_named<OnSpike>(kActions, "answer to a spike", name);
}
std::vector<std::string> on_spike_names() {
  return all_names<OnSpike>(kActions);
}
std::string to_string(OnSpike action) {
  return name_of<OnSpike>(kActions, "an answer to a spike", action);
}

}  // namespace lockstep::training
