#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::train {

/// The action of a run at a step whose loss is a spike.
enum class OnSpike {
  kNothing,
  kSkip,      ///< leaves out the update
  kRollBack,  ///< also goes back to the weights of the last checkpoint
};

/// Parses "nothing", "skip" or "roll-back". Throws InvalidArgument, which names
/// the nearest.
OnSpike parse_on_spike(const std::string& name);
std::vector<std::string> on_spike_names();
std::string to_string(OnSpike action);

/// Options for handling spikes and for SpikeGuard, which detects them.
struct SpikeOptions {
  OnSpike action = OnSpike::kNothing;
  /// Standard deviations above the mean of the last losses.
  double sigma = 6;
  int64_t window = 128;  ///< number of last losses
};

/// Throws InvalidArgument for numbers out of range.
void check(const SpikeOptions& options);

}  // namespace lockstep::train
