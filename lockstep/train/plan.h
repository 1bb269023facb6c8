#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/checkpoint/run_record.h"
#include "lockstep/train/options.h"

namespace lockstep::train {

/// What a run's options come to on this machine.
struct Plan {
  /// Those at work in this rank: one for kSingle and kDistributed.
  std::vector<Device> devices;
  int64_t world_size = 1;  ///< devices at work in all ranks
  int64_t shards = 1;
  /// Threads that a shard computes with. It depends on the host's cores and
  /// the number of shards alone, so that one device that runs the shards one
  /// after another gets the bits of many that run them at once.
  int intra_op_threads = 1;
  bool channels_last = false;
};

/// Checks the options and completes them. Throws InvalidArgument naming the
/// option: no devices, fewer shards than devices, sizes below 1, ranks that
/// have no device. What the options leave open is as the run that is gone on
/// with had it (`saved`).
Plan make_plan(const TrainOptions& options, const Settings& saved = {});

/// Where a run is, as the schedules see it.
struct Position {
  int64_t step = 0;  ///< counted from 0
  int64_t epoch = 0;
  int64_t total_steps = 1;
};

/// The learning rate of a step. kSteps: lr x 0.1 for each milestone that the
/// epoch has reached. kCosine: lr x (step + 1) / warmup, then half a cosine
/// down to 0 at total_steps (torch's CosineAnnealingLR, eta_min 0). Warm-up
/// holds for every kind.
double learning_rate(const TrainOptions& options, const Position& position);

}  // namespace lockstep::train
