#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/train/trainer.h"

namespace lockstep::train {

/// What a run's options come to on this machine.
struct Plan {
  std::vector<Device> devices;  ///< those at work: one for kSingle
  int64_t shards = 1;
  /// Threads that a shard computes with. It depends on the host's cores and
  /// the number of shards alone, so that one device that runs the shards one
  /// after another gets the bits of many that run them at once.
  int intra_op_threads = 1;
};

/// Checks the options and completes them. Throws InvalidArgument naming the
/// option: no devices, shards that are not a multiple of the devices, sizes
/// below 1.
Plan make_plan(const TrainOptions& options);

}  // namespace lockstep::train
