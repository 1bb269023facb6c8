#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/embed/device_options.h"
#include "lockstep/comm/world.h"
#include "lockstep/train/options.h"

// How a subcommand becomes the ranks of a job.
namespace lockstep::cli {

struct RankFlags {
  std::string backend = "auto";
  int64_t timeout_s = 300;
};
void add_rank_options(CLI::App& app, RankFlags& flags);

/// Whether this process was started as a rank: by `lockstep run`, torchrun,
/// srun or mpirun. Not if it is the only task of srun or mpirun: it has the
/// host to itself, and starts its ranks as a process without a launcher does.
bool is_rank();
/// Whether start_ranks() did so, which has printed what one process prints.
bool is_own_rank();

/// Runs this program again, with its own arguments, as a rank for each of
/// `devices`, and ends as they end: throws CLI::RuntimeError with the code.
[[noreturn]] void start_ranks(const DeviceFlags& devices);

/// The same, `count` ranks.
[[noreturn]] void start_ranks(int count);

/// Makes this process a rank: fills in options.world and options.devices, one
/// for each rank of this host. Throws BadUsage if `devices` names more than
/// that.
void join_ranks(const RankFlags& flags, const DeviceFlags& devices,
                train::TrainOptions& options);

/// "Rank: 0 | Local rank: 0 | Device: cpu:0 | Batch: 32".
std::string describe_rank(const train::TrainOptions& options);

}  // namespace lockstep::cli
