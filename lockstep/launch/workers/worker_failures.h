#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/workers/worker_team.h"

namespace lockstep::launch {

/// The attempt whose failures are looked for. Seconds are of the steady clock.
struct AttemptFacts {
  int node_rank = 0;
  std::string host;
  double began_s = 0;
  /// When the agent began to end its workers, and the signal that they got;
  /// nothing if it did not.
  std::optional<double> ending_began_s{};
  int ending_signal = 0;
  bool keeps_logs = false;
};

/// The workers that failed by themselves, with what their error files say.
/// Workers that the agent ended did not fail.
std::vector<Failure> worker_failures(const std::vector<Worker>& workers,
                                     const AttemptFacts& attempt);

/// Writes an error file for every worker that was killed before it could write
/// one, as torchrun does.
void write_missing_error_files(const std::vector<Failure>& failures,
                               const std::vector<Worker>& workers);

/// Writes the root cause to $TORCHELASTIC_ERROR_FILE, for the launcher that
/// started this one; nothing without one.
void pass_on_root_cause(const Failure& root);

}  // namespace lockstep::launch
