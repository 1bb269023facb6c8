#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::train {

/// Durations of steps over a run: at most 512 steps at equal intervals.
struct StepTimeHistory {
  std::vector<int64_t> steps;   ///< counted from 1
  std::vector<double> seconds;  ///< duration of each step
};

/// Memory use of the devices over a run: at most 256 steps at equal intervals.
/// It starts again after the loss of another rank.
struct MemoryHistory {
  std::vector<int64_t> steps;   ///< counted from 1
  std::vector<double> seconds;  ///< since the steps began
  /// [device][point]: bytes in tensors, and in blocks kept for the next ones.
  std::vector<std::vector<int64_t>> held_bytes;
  /// [device][point]: the highest number of bytes in tensors so far.
  std::vector<std::vector<int64_t>> peak_bytes;
  /// [point]: bytes that all devices share. Empty with several ranks.
  std::vector<int64_t> shared_bytes;
};

nlohmann::ordered_json to_json(const StepTimeHistory& history);
nlohmann::ordered_json to_json(const MemoryHistory& history);
// Read what to_json() wrote. Throw IoError for invalid values: not one value
// per step, negative numbers, steps out of order.
StepTimeHistory step_times_from_json(const nlohmann::json& json);
MemoryHistory memory_history_from_json(const nlohmann::json& json);

}  // namespace lockstep::train
