#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

/// The position of a run, between two steps. Everything random depends on the
/// seed and on this position.
struct RunPosition {
  int64_t step = 0;   ///< steps done
  int64_t epoch = 0;  ///< epoch of the next batch
  int64_t batch = 0;  ///< number of the next batch in that epoch
  /// Samples of the epoch so far, and the sum of each metric over them.
  int64_t samples = 0;
  std::map<std::string, double> sums = {};
  bool is_ended = false;  ///< a callback ended the run here
};

/// Settings by name, as text: {"lr", "0.02"}.
using Settings = std::map<std::string, std::string>;

/// The data that a resumed run needs, and must find unchanged.
struct RunRecord {
  RunPosition position;
  Settings settings;  ///< others give other bits
  Settings versions;  ///< of what computes: others may give other bits
};

/// Description of a checkpoint in its manifest.json.
struct CheckpointInfo {
  /// Description of the model for code that can build it again: a name and its
  /// options. {"name", "resnet18"}, {"classes", "10"}. May be empty.
  Settings model;
  int64_t step = 0;
  int64_t epoch = 0;
  std::string parameter_sha256;
  /// The data from which a trainer resumes; nothing if no trainer saved them.
  std::optional<RunRecord> run;
};

/// Costs of all checkpoints on rank 0.
struct CheckpointCosts {
  int64_t saved = 0;
  int64_t failed = 0;  ///< number of these that were not written
  double stall_s = 0;  ///< time for which the steps were stopped
  double write_s = 0;  ///< time for writing during the steps
  int64_t bytes = 0;   ///< size of one checkpoint
};

/// Costs of the snapshots in memory on this rank.
struct SnapshotCosts {
  int64_t taken = 0;
  double seconds = 0;  ///< total time for which the steps were stopped
  int64_t bytes = 0;   ///< size of one snapshot
};

}  // namespace lockstep
