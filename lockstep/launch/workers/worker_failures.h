#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/workers/worker_team.h"

namespace lockstep::launch {

/// Facts about the attempt whose failures are collected. Seconds are on the
/// steady clock.
struct AttemptFacts {
  int node_rank = 0;
  std::string host;
  double began_s = 0;
  /// Time at which the agent began to end its workers, if it did. They got the
  /// signal `ending_signal`.
  std::optional<double> ending_began_s{};
  int ending_signal = 0;
  bool keeps_logs = false;
};

/// Returns the workers that failed on their own, with the content of their
/// error files. Workers that the agent ended did not fail.
std::vector<Failure> worker_failures(const std::vector<Worker>& workers,
                                     const AttemptFacts& attempt);

/// Writes an error file for every worker that was killed before it could write
/// one, as torchrun does.
void write_missing_error_files(const std::vector<Failure>& failures,
                               const std::vector<Worker>& workers);

/// Writes the root cause to $TORCHELASTIC_ERROR_FILE for the launcher that
/// started this one. Does nothing without such a launcher.
void pass_on_root_cause(const Failure& root);

}  // namespace lockstep::launch
