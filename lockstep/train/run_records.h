#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::train {

/// How long steps took, over a run: of at most 512 steps, as many steps apart.
struct StepTimeHistory {
  std::vector<int64_t> steps;   ///< counted from 1
  std::vector<double> seconds;  ///< of each
};

/// How full devices were after steps, over a run: at most 256 points, as many
/// steps apart. After the loss of another rank it begins anew.
struct MemoryHistory {
  std::vector<int64_t> steps;   ///< counted from 1
  std::vector<double> seconds;  ///< since the steps began
  /// [device][point]: tensors, and blocks kept for the next ones.
  std::vector<std::vector<int64_t>> held_bytes;
  /// [device][point]: the highest so far of tensors.
  std::vector<std::vector<int64_t>> peak_bytes;
  /// [point]: held by no device, as all share it. Empty with several ranks.
  std::vector<int64_t> shared_bytes;
};

nlohmann::ordered_json to_json(const StepTimeHistory& history);
nlohmann::ordered_json to_json(const MemoryHistory& history);
// Read what to_json() wrote. Throw IoError for what can't be: another number of
// values than of steps, negative numbers, steps out of order.
StepTimeHistory step_times_from_json(const nlohmann::json& json);
MemoryHistory memory_history_from_json(const nlohmann::json& json);

}  // namespace lockstep::train
