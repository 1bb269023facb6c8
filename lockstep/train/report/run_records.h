#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lockstep/train/run_report.h"

namespace lockstep::train {

nlohmann::ordered_json to_json(const StepTimeHistory& history);
nlohmann::ordered_json to_json(const MemoryHistory& history);
// Read what to_json() wrote. Throw IoError for invalid values: not one value
// per step, negative numbers, steps out of order.
StepTimeHistory step_times_from_json(const nlohmann::json& json);
MemoryHistory memory_history_from_json(const nlohmann::json& json);

}  // namespace lockstep::train
