#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/run/run_training.h"

// Turns a subcommand into the ranks of a job.
namespace lockstep::cli {

struct RankFlags {
  std::string backend = "auto";
  int64_t timeout_s = 300;
};
std::vector<Option> rank_options(RankFlags& flags);

/// Returns true if this process was started as a rank: by `lockstep run`,
/// torchrun, srun or mpirun. Returns false if it is the only task of srun or
/// mpirun. It then has the whole host, and starts its ranks like a process
/// without a launcher.
bool is_rank();
/// Returns true if start_ranks() started this process. The process that called
/// it has printed everything that is printed only once.
bool is_own_rank();

/// Runs this program again with the same arguments, as `count` ranks. Then
/// throws CLI::RuntimeError with the exit code of the job.
[[noreturn]] void start_ranks(size_t count);

/// Makes this process a rank: sets context.world, context.rejoin and
/// options.devices, which has one device for each rank of this host. Throws
/// BadUsage if `devices` names more devices than ranks.
void join_ranks(const RankFlags& flags, const DeviceFlags& devices,
                training::TrainOptions& options, training::RunContext& context);

/// Returns "Rank: 0 | Local rank: 0 | Device: cpu:0 | Batch: 32".
std::string describe_rank(const training::TrainOptions& options,
                          const ProcessGroup& world);

}  // namespace lockstep::cli
