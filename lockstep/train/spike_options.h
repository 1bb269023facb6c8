#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::train {

/// What a run does at a step whose loss is a spike.
enum class OnSpike {
  kNothing,
  kSkip,      ///< leaves out the update
  kRollBack,  ///< goes back to the last checkpoint's weights, too
};

/// "nothing", "skip", "roll-back"; throws InvalidArgument with the nearest.
OnSpike parse_on_spike(const std::string& name);
std::vector<std::string> on_spike_names();
std::string to_string(OnSpike action);

/// How SpikeGuard tells a spike.
struct SpikeOptions {
  OnSpike action = OnSpike::kNothing;
  /// Above the mean of the last losses by so many of their standard deviations.
  double sigma = 6;
  int64_t window = 128;  ///< so many losses
};

/// Throws InvalidArgument for numbers that can't be.
void check(const SpikeOptions& options);

}  // namespace lockstep::train
