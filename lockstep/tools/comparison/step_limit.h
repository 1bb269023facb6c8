#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::tools {

/// Seconds of a step by what its devices do: means over the devices. They add
/// up to the step.
struct StepParts {
  double products = 0;     ///< matrix products, convolutions, fused attention
  double casts = 0;        ///< copies that change the type
  double copies = 0;       ///< other copies
  double elementwise = 0;  ///< all other kernels
  double update = 0;       ///< sum of the gradients and update
  double waiting = 0;      ///< for other devices, ranks or the caller's thread
  double between = 0;  ///< between the kernels: dispatch, autograd, the loop
};

/// A part of a step, with its key in JSON and its name in tables.
struct StepPart {
  const char* key;
  const char* name;
  double StepParts::*seconds;
};
inline constexpr std::array<StepPart, 7> kStepParts{{
    {"products", "products", &StepParts::products},
    {"casts", "casts", &StepParts::casts},
    {"copies", "copies", &StepParts::copies},
    {"elementwise", "elementwise", &StepParts::elementwise},
    {"update", "update", &StepParts::update},
    {"waiting", "waiting", &StepParts::waiting},
    {"between", "between kernels", &StepParts::between},
}};

/// The limit of a step: the time that its matrix products and convolutions take
/// without the rest, on the same devices, all at the same time. And what the
/// rest of the step is.
struct StepLimit {
  double step_s = 0;            ///< median of the timed steps
  double products_alone_s = 0;  ///< the limit
  StepParts parts;              ///< of step_s
  int64_t products = 0;         ///< number in a step, on all devices
  double flops = 0;             ///< of all of them
  double bytes = 0;             ///< bytes that a step must read and write
  double bytes_per_s = 0;       ///< of copies of so much memory, on all devices

  /// Returns the share of the limit: its time as a fraction of the step.
  double share() const { return step_s > 0 ? products_alone_s / step_s : 0; }
  /// Returns the time that the memory needs for `bytes`.
  double memory_s() const { return bytes_per_s > 0 ? bytes / bytes_per_s : 0; }
};

/// Pools the rounds of a run whose median step takes `step_s`: medians of the
/// rounds' shares and rates, and their mean parts. Nothing without rounds.
std::optional<StepLimit> pool_limits(const std::vector<StepLimit>& rounds,
                                     double step_s);

nlohmann::json to_json(const StepLimit& limit);
/// Reads what to_json() wrote. Throws IoError naming the missing key.
StepLimit step_limit_from_json(const nlohmann::json& json);

}  // namespace lockstep::tools
