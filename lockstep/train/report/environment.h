#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::train {

/// The environment of a run: the host and the process of rank 0.
struct Environment {
  std::string host;  ///< host name; empty: nothing is known
  std::string os;    ///< "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;
  std::string cpu_model;
  int64_t cores = 0;           ///< cores that the process may use
  int64_t memory_bytes = 0;    ///< memory of the host
  std::string cpu_capability;  ///< of LibTorch's kernels: "AVX2"
  std::string torch;           ///< the version that is loaded: "2.11.0"
  std::string compiler;        ///< compiler that Lockstep was built with
  std::vector<std::string> gpus;
  /// Environment variables, by name, that are set and that affect the results
  /// or the speed of a run, with their values. Other variables are not kept, as
  /// they may be secret.
  std::vector<std::pair<std::string, std::string>> variables;
};

Environment this_environment();

/// Returns "Intel(R) Xeon(R)", say, or "unknown".
std::string cpu_model();

nlohmann::ordered_json to_json(const Environment& environment);
/// Reads what to_json() wrote. Missing values stay empty. Throws IoError for a
/// value of the wrong type.
Environment environment_from_json(const nlohmann::json& json);

}  // namespace lockstep::train
