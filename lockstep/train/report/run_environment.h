#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/train/run_report.h"

namespace lockstep::training {

RunEnvironment this_environment();

/// Returns "Intel(R) Xeon(R)", say, or "unknown".
std::string cpu_model();

nlohmann::ordered_json to_json(const RunEnvironment& environment);
/// Reads what to_json() wrote. Missing values stay empty. Throws IoError for a
/// value of the wrong type.
RunEnvironment environment_from_json(const nlohmann::json& json);

}  // namespace lockstep::training
