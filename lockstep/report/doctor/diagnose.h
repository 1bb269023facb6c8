#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/doctor/host_facts.h"

namespace lockstep::report {

enum class Verdict {
  kOk,
  kWarn,  ///< training works, but more slowly or with less than possible
  kFail,  ///< training is impossible
};

/// A finding about one part of the machine: a line of `lockstep doctor`.
struct Finding {
  std::string topic;
  Verdict verdict = Verdict::kOk;
  std::string found{};
  std::string fix{};  ///< how to fix it; empty if all is well

  /// Set the verdict and the fix.
  void warn(const std::string& how_to_fix) {
    verdict = Verdict::kWarn;
    fix = how_to_fix;
  }
  void fail(const std::string& how_to_fix) {
    verdict = Verdict::kFail;
    fix = how_to_fix;
  }
};

/// Judges every fact, in the order in which the findings are shown.
std::vector<Finding> diagnose(const HostFacts& facts);

/// Environment variables that disturb training, each with its fix.
const std::vector<std::pair<std::string, std::string>>& disturbing_variables();

}  // namespace lockstep::report
