#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/checkpoint/info.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

/// The values that a run's options lead to on this machine, for this rank.
struct Plan {
  /// Devices that this rank uses: one for kSingle and kDistributed.
  std::vector<Device> devices;
  /// Index in `devices` of kDataParallelClassic's output device.
  size_t output_device = 0;
  int rank = 0;
  int64_t ranks = 1;
  int64_t world_size = 1;  ///< devices in use on all ranks
  int64_t shards = 1;
  /// Threads that compute a shard. The number depends only on the host's cores
  /// and the number of shards, so one device that runs the shards one after
  /// another gets the same bits as many devices that run them at once.
  int intra_op_threads = 1;
};

/// Returns the number that the setting `name` of a saved run has; nothing if
/// there is no such setting. Throws CheckpointError unless it is in 1..most.
std::optional<int64_t> saved_number(
    const Settings& saved, const char* name,
    int64_t most = std::numeric_limits<int64_t>::max());

/// Throws InvalidArgument, which names `option`, unless `value` is `least` or
/// more.
void check_at_least(const char* option, int64_t value, int64_t least);
/// Throws InvalidArgument, which names `option`, unless `value` is finite and
/// at least 0.
void check_not_negative(const char* option, double value);

/// Throws InvalidArgument if a launcher started this process as one of several
/// ranks, and the run would not be shared by them: each rank would train the
/// same run. `group_size` is the number of ranks that the run knows of.
void check_launched_ranks(const TrainOptions& options, int64_t group_size);

/// Throws InvalidArgument if `ranks` ranks that make their own steps can't all
/// have the same number of shards.
void check_shards_of_ranks(const CommunicationOptions& communication,
                           int64_t shards, int64_t ranks);

/// Checks the options and completes them. Throws InvalidArgument, which names
/// the option, as check_options() does, and also for no devices, fewer shards
/// than devices, sizes below 1 and ranks without a device. Options that are
/// left open are taken from the run that is resumed (`saved`).
Plan make_plan(const TrainOptions& options, const ProcessGroup& world = {},
               const Settings& saved = {});

}  // namespace lockstep::training
