#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/world.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/bad_links.h"
#include "lockstep/parallel/exchange/zero_stage.h"
#include "lockstep/train/communication.h"
#include "lockstep/train/spike_options.h"

namespace lockstep::train {

/// How a run uses its devices.
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

/// What forward and loss are computed in. Weights, their gradients and the
/// optimizer's state are float32.
enum class Precision {
  kFloat32,
  kBFloat16,  ///< autocast
  kFloat16,   ///< autocast, and the loss is scaled
};

/// "fp32", "bf16", "fp16"; throws InvalidArgument with the nearest.
Precision parse_precision(const std::string& name);
std::vector<std::string> precision_names();
std::string to_string(Precision precision);
/// What autocast computes in; nothing for kFloat32.
std::optional<c10::ScalarType> autocast_type(Precision precision);

/// How a task is trained. The same task and options give the same bits.
struct TrainOptions {
  Strategy strategy = Strategy::kSingle;
  /// kDistributed: one for each rank of this host.
  std::vector<Device> devices;
  /// kDataParallelClassic: the name of the one of `devices` that gathers the
  /// outputs and computes the loss. Empty: the first, which has the module, its
  /// gradients and the optimizer's state.
  std::string output_device;
  /// Prints which device gets which part of a batch, in the first step and
  /// when that changes.
  bool show_shards = false;
  /// Of several GPUs: what is done when copies between them arrive changed.
  BadLinks bad_links = BadLinks::kStage;
  World world;               ///< kDistributed: the ranks
  int64_t shards = 0;        ///< 0: one per device
  int intra_op_threads = 0;  ///< of a shard; 0: the cores / shards
  int64_t batch_size = 64;   ///< over all devices
  /// Micro-batches that a device computes one after another in a step, whose
  /// gradients are summed before the update: so many shards for each device.
  int64_t accumulate = 1;
  Precision precision = Precision::kFloat32;
  /// kDistributed, between ranks that share no memory: what each holds a part
  /// of only.
  ZeroStage zero = ZeroStage::kNone;
  CommunicationOptions communication;  ///< kDistributed
  int64_t epochs = 1;
  int64_t max_steps = 0;  ///< 0: no limit
  uint64_t seed = 0;
  bool evaluate = true;       ///< on the task's evaluation data, at the end
  double clip_grad_norm = 0;  ///< 0: off
  SpikeOptions spikes;        ///< of the loss
  bool shuffle = true;        ///< the order of the samples, anew each epoch
  /// Leaves out the samples at an epoch's end that fill no batch.
  bool drop_last = false;
  /// Steps after which ranks with parameters of their own (gloo, nccl) compare
  /// them and the optimizer's state; 0: never. Snapshots are at these steps.
  int64_t verify_every = 10;
  /// Each so many steps all gradients are computed twice, and a third time
  /// where they differ (TrainStepOptions::verify_gradients); 0: never.
  int64_t verify_gradients_every = 0;
  /// The first step compares a replica with the model, and the loss with that
  /// of the whole batch (DataParallelOptions::verify_first_step).
  bool verify_first_step = true;
  int64_t eval_every = 0;  ///< steps between evaluations; 0: at the end only
  int64_t eval_batch_size = 0;  ///< 0: batch_size, or 250 if that is more
  int loader_workers = 1;
  std::string out_dir;           ///< checkpoints and run.json; empty: none
  int64_t checkpoint_every = 0;  ///< steps; 0: at the end only
  bool checkpoint_each_epoch = false;  ///< at its end, too
  /// Newest checkpoints that are kept, 2 at least. 0: three, or all of them if
  /// checkpoint_each_epoch is set.
  int keep_checkpoints = 0;
  /// Keeps the checkpoint of the best evaluation, in out_dir/best: "loss",
  /// "accuracy", or another metric. See BestEvaluation. Empty: none.
  std::string save_best;
  /// So many evaluations in a row without a better one end the run; 0: none.
  int64_t early_stop = 0;
  /// Steps between snapshots in memory, from which a worker that is lost is
  /// replaced; 0: none. Only under an agent that has restarts left.
  int64_t snapshot_every = 1;
  /// kDistributed: gives `world` and `devices` new values after another rank
  /// was lost, for which it may wait, as init_next() does. False if there is
  /// no going on.
  std::function<bool(TrainOptions& options, const std::string& why)> rejoin;
  /// Weights to start from: a checkpoint, a safetensors file, or a folder of
  /// Hugging Face's with a GPT-2 or a Llama.
  std::string init_from;
  /// Goes on from a checkpoint, or the newest of a run's folder, as if there
  /// had been no stop. "auto": from out_dir, or from the beginning if there is
  /// none. What the options leave open (shards, threads) is then as it was.
  std::string resume;
  /// Go on even if other settings than the checkpoint's give other bits.
  bool allow_changes = false;
  /// Chrome trace of all ranks' last steps (chrome_trace.h); empty: none
  std::string trace;
  int64_t trace_steps = 10;
  std::string csv;          ///< a row for each step (CsvLog); empty: none
  std::string tensorboard;  ///< folder of event files (TensorBoardLog)
  bool progress = true;     ///< a bar on a terminal, else plain lines
  int64_t log_every = 10;   ///< steps between plain lines
  /// Each rank says what it does, for `lockstep top`: in out_dir/live, or in
  /// memory of this host.
  bool live_status = true;
  std::vector<std::string> command;
  /// Called on rank 0 when nothing spoke against the options, before the first
  /// step.
  std::function<void()> on_begin;
};

}  // namespace lockstep::train
