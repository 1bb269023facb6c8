#pragma once

#include <cstdint>

namespace lockstep {

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
