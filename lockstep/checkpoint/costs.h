#pragma once

#include <cstdint>

namespace lockstep {

/// What writing checkpoints cost rank 0, all of them together.
struct CheckpointCosts {
  int64_t saved = 0;
  int64_t failed = 0;  ///< of these, not written
  double stall_s = 0;  ///< the steps stood still
  double write_s = 0;  ///< beside the steps
  int64_t bytes = 0;   ///< of one
};

/// What snapshots in memory cost this rank.
struct SnapshotCosts {
  int64_t taken = 0;
  double seconds = 0;  ///< of all together; the steps stood still
  int64_t bytes = 0;   ///< of one
};

}  // namespace lockstep
