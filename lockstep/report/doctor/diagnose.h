#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/doctor/host_facts.h"

namespace lockstep::report {

enum class Verdict {
  kOk,
  kWarn,  ///< training works, but slower or for less than it could
  kFail,  ///< training is impossible
};

/// What is known of one part of the machine: a line of `lockstep doctor`.
struct Finding {
  std::string topic;
  Verdict verdict = Verdict::kOk;
  std::string found{};
  std::string fix{};  ///< what to do; empty if all is well
};

/// Judges every fact, in the order in which they are shown.
std::vector<Finding> diagnose(const HostFacts& facts);

/// Environment variables that disturb training, and how to be rid of that.
const std::vector<std::pair<std::string, std::string>>& disturbing_variables();

}  // namespace lockstep::report
