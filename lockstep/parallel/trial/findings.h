#pragma once

#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

/// State of a check of a step.
enum class CheckState {
  kPending,     ///< not made yet
  kPassed,      ///< made, and no problem was found
  kImpossible,  ///< can't be made for this module or loss; a warning said why
  kOff,         ///< switched off
};

/// Returns "pending", "passed", "impossible" or "off".
std::string to_string(CheckState state);

/// Result of one check on a rank.
struct Outcome {
  CheckState state = CheckState::kPending;
  std::string reason{};  ///< reason for kImpossible
};

/// Results of the checks of a step on a rank.
struct Findings {
  std::optional<Problem> problem;
  Outcome module;  ///< a replica compared with the module
  Outcome loss;    ///< the shards' losses compared with that of all samples
};

/// Returns whether `one` is true on any rank of `world`. Collective.
bool is_any(const ProcessGroup& world, bool one);

/// Combines the findings of all ranks of `world`: the problem of the first rank
/// that has one, kImpossible if a rank can't make a check, and kPending if a
/// rank could not decide yet. Collective.
void agree(const ProcessGroup& world, Findings& findings);

}  // namespace lockstep
