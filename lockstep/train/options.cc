#include "lockstep/train/options.h"

#include <array>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/suggest.h"

namespace lockstep::train {
namespace {

const std::array<std::pair<Strategy, const char*>, 4> kStrategies{{
    {Strategy::kSingle, "single"},
    {Strategy::kDataParallel, "dp"},
    {Strategy::kDataParallelClassic, "dp-classic"},
    {Strategy::kDistributed, "ddp"},
}};

}  // namespace

Strategy parse_strategy(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [strategy, known] : kStrategies) {
    if (name == known) return strategy;
    names.emplace_back(known);
  }
  throw InvalidArgument("train", {.code = ErrorCode::kUnknownName,
                                  .what = "unknown strategy '" + name + "'",
                                  .fix = did_you_mean(name, names)});
}

std::string to_string(Strategy strategy) {
  for (const auto& [known, name] : kStrategies) {
    if (known == strategy) return name;
  }
  throw InvalidArgument("train", {.code = ErrorCode::kUnknownName,
                                  .what = "a strategy without a name"});
}

}  // namespace lockstep::train
