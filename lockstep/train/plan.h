#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/checkpoint/run_record.h"
#include "lockstep/train/options.h"

namespace lockstep::train {

/// What a run's options come to on this machine.
struct Plan {
  /// Those at work in this rank: one for kSingle and kDistributed.
  std::vector<Device> devices;
  /// The place of kDataParallelClassic's output device among them.
  size_t output_device = 0;
  int64_t world_size = 1;  ///< devices at work in all ranks
  int64_t shards = 1;
  /// Threads that a shard computes with. It depends on the host's cores and
  /// the number of shards alone, so that one device that runs the shards one
  /// after another gets the bits of many that run them at once.
  int intra_op_threads = 1;
};

/// Throws InvalidArgument, which names the option, for a number that is out of
/// range and for options that can't work together. Looks at all but the devices
/// and the ranks, so that it can be called before there are any.
void check_options(const TrainOptions& options);

/// Throws InvalidArgument if so many ranks, which make steps by themselves,
/// would not have as many shards each.
void check_shards_of_ranks(const CommunicationOptions& communication,
                           int64_t shards, int64_t ranks);

/// Checks the options and completes them. Throws InvalidArgument naming the
/// option, as check_options() does: no devices, fewer shards than devices,
/// sizes below 1, ranks that have no device. What the options leave open is as
/// the run that is gone on with had it (`saved`).
Plan make_plan(const TrainOptions& options, const Settings& saved = {});

}  // namespace lockstep::train
