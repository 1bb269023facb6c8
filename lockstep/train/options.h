#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/data/dataset.h"
#include "lockstep/device/device.h"
#include "lockstep/models/model.h"

namespace lockstep::train {

enum class Strategy {
  kSingle,
  kDataParallel,
  kDataParallelClassic,
  kDistributed,  ///< DistributedDataParallel: a rank for each device
};

/// "single", "dp", "dp-classic", "ddp"; throws InvalidArgument with the
/// nearest.
Strategy parse_strategy(const std::string& name);
std::vector<std::string> strategy_names();
std::string to_string(Strategy strategy);

enum class OptimizerKind { kSgd, kAdamW };
enum class ScheduleKind {
  kConstant,
  kSteps,   ///< lr x 0.1 at each of `milestones`: 0.1, 0.01, ...
  kCosine,  ///< linear warm-up, then cosine to 0
};

/// Everything a run depends on. The same options give the same bits.
struct TrainOptions {
  models::ModelSpec model;
  data::DataSpec data;
  Strategy strategy = Strategy::kSingle;
  /// kDistributed: one for each rank of this host.
  std::vector<Device> devices;
  World world;               ///< kDistributed: the ranks
  int64_t shards = 0;        ///< 0: one per device
  int intra_op_threads = 0;  ///< of a shard; 0: the cores / shards
  int64_t batch_size = 64;   ///< over all devices
  int64_t epochs = 1;
  int64_t max_steps = 0;  ///< 0: no limit
  uint64_t seed = 0;
  bool augment = true;
  bool evaluate = true;  ///< on the test split at the end
  OptimizerKind optimizer = OptimizerKind::kSgd;
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  bool nesterov = false;
  ScheduleKind schedule = ScheduleKind::kCosine;
  int64_t warmup_steps = 0;
  std::vector<int64_t> milestones;  ///< epochs
  double clip_grad_norm = 0;        ///< 0: off
  /// Layout of images; nothing: the faster one.
  std::optional<bool> channels_last = false;
  int loader_workers = 1;
  std::string out_dir;           ///< checkpoints and run.json; empty: none
  int64_t checkpoint_every = 0;  ///< steps; 0: at the end only
  int keep_checkpoints = 3;      ///< 2 at least
  /// Steps between snapshots in memory, from which a worker that is lost is
  /// replaced; 0: none. Only under an agent that has restarts left.
  int64_t snapshot_every = 1;
  /// kDistributed: gives `world` and `devices` new values after another rank
  /// was lost, for which it may wait, as init_next() does. False if there is
  /// no going on.
  std::function<bool(TrainOptions& options, const std::string& why)> rejoin;
  std::string init_from;  ///< checkpoint or safetensors to start from
  /// Goes on from a checkpoint, or the newest of a run's folder, as if there
  /// had been no stop. "auto": from out_dir, or from the beginning if there is
  /// none. Shards, threads and layout are then those of the checkpoint unless
  /// they are given.
  std::string resume;
  /// Go on even if other settings than the checkpoint's give other bits.
  bool allow_changes = false;
  /// Chrome trace of all ranks' last steps (chrome_trace.h); empty: none
  std::string trace;
  int64_t trace_steps = 10;
  bool progress = true;    ///< a bar on a terminal, else plain lines
  int64_t log_every = 10;  ///< steps between plain lines
  std::vector<std::string> command;
};

}  // namespace lockstep::train
