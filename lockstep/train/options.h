#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/bad_links.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep::train {

/// The way in which a run uses its devices.
enum class Strategy {
  kSingle,
  kDataParallel,
  kDataParallelClassic,
  kDistributed,  ///< DistributedDataParallel: a rank for each device
};

/// Parses "single", "dp", "dp-classic" or "ddp". Throws InvalidArgument, which
/// names the nearest.
Strategy parse_strategy(const std::string& name);
std::vector<std::string> strategy_names();
std::string to_string(Strategy strategy);

/// The type in which forward and loss are computed. Weights, gradients and
/// optimizer state are float32.
enum class Precision {
  kFloat32,
  kBFloat16,  ///< autocast
  kFloat16,   ///< autocast, with loss scaling
};

/// Parses "fp32", "bf16" or "fp16". Throws InvalidArgument, which names the
/// nearest.
Precision parse_precision(const std::string& name);
std::vector<std::string> precision_names();
std::string to_string(Precision precision);
/// Returns the type that autocast computes in; nothing for kFloat32.
std::optional<c10::ScalarType> autocast_type(Precision precision);

/// Options for loading the training data.
struct LoadingOptions {
  int workers = 1;      ///< threads that prepare batches; 0: none
  bool shuffle = true;  ///< shuffles the samples anew in each epoch
  /// Leaves out the last samples of an epoch if they don't fill a batch.
  bool drop_last = false;
};

/// Options for evaluations on the task's evaluation data.
struct EvaluationOptions {
  bool enabled = true;     ///< at the end, and after every `every` steps
  int64_t every = 0;       ///< steps between evaluations; 0: at the end only
  int64_t batch_size = 0;  ///< 0: that of the run, or 250 if that is more
  /// Evaluations in a row without a better one after which the run ends; 0:
  /// never. CheckpointOptions::save_best, or else the loss, says what is
  /// better.
  int64_t early_stop = 0;
};

/// Options for the saved states of a run, and for continuing from one.
struct CheckpointOptions {
  int64_t every = 0;        ///< steps; 0: at the end only
  bool each_epoch = false;  ///< also at the end of each epoch
  /// Number of newest checkpoints to keep, at least 2. 0: three, or all of them
  /// if each_epoch is set.
  int keep = 0;
  /// Metric by which the checkpoint of the best evaluation is kept in
  /// out_dir/best: "loss", "accuracy", or another one. See BestEvaluation.
  /// Empty: none.
  std::string save_best;
  /// Steps between snapshots in memory, from which a lost worker is replaced;
  /// 0: none. Only under an agent that has restarts left.
  int64_t snapshot_every = 1;
  /// Checkpoint to resume from, or a run's folder, which means its newest
  /// checkpoint. The run continues as if it had never stopped. "auto": from
  /// out_dir, or from the beginning if that has no checkpoint. Options that are
  /// left open (shards, threads) keep their saved values.
  std::string resume;
  /// Resumes even if settings differ from the checkpoint's and change the bits.
  bool allow_changes = false;
};

/// Options for finding faulty hardware.
struct VerifyOptions {
  /// Steps between comparisons of the parameters and the optimizer's state of
  /// ranks that have their own copies (tcp, nccl); 0: never. Snapshots are
  /// taken at these steps.
  int64_t every = 10;
  /// Steps between those whose gradients are all computed twice, and a third
  /// time where they differ (TrainStepOptions::verify_gradients); 0: never.
  int64_t gradients_every = 0;
  /// Compares in the first step a replica with the model, and the loss with the
  /// loss of the whole batch (DataParallelOptions::verify_first_step).
  bool first_step = true;
  /// Several GPUs: what to do if copies between them arrive changed.
  BadLinks bad_links = BadLinks::kStage;
};

/// Options for what a run tells its user.
struct LogOptions {
  bool progress = true;  ///< a bar on a terminal, else plain lines
  int64_t every = 10;    ///< steps between plain lines
  /// Prints which device gets which part of a batch, in the first step and
  /// whenever that changes.
  bool shards = false;
  std::string csv;          ///< a row for each step (CsvLog); empty: none
  std::string tensorboard;  ///< folder of event files (TensorBoardLog)
  /// Path for a Chrome trace of all ranks' last steps (rank_trace.h); empty:
  /// none.
  std::string trace;
  int64_t trace_steps = 10;
  /// Publishes for `lockstep top` what each rank is doing: in out_dir/live, or
  /// in memory of this host.
  bool live_status = true;
};

/// The action of a run at a step whose loss is a spike.
enum class OnSpike {
  kNothing,
  kSkip,      ///< leaves out the update
  kRollBack,  ///< also goes back to the weights of the last checkpoint
};

/// Parses "nothing", "skip" or "roll-back". Throws InvalidArgument, which names
/// the nearest.
OnSpike parse_on_spike(const std::string& name);
std::vector<std::string> on_spike_names();
std::string to_string(OnSpike action);

/// Options for handling spikes and for SpikeGuard, which detects them.
struct SpikeOptions {
  OnSpike action = OnSpike::kNothing;
  /// Standard deviations above the mean of the last losses.
  double sigma = 6;
  int64_t window = 128;  ///< number of last losses
};

/// Throws InvalidArgument for numbers out of range.
void check(const SpikeOptions& options);

/// The form in which ranks send gradients.
enum class GradCompression {
  kNone,
  kBFloat16,  ///< rounded; half the bytes
  kFloat16,   ///< rounded; half the bytes
  kPowerSgd,  ///< a product of two matrices of a low rank (PowerSGD)
};

/// Parses "none", "bf16", "fp16" or "powersgd". Throws InvalidArgument, which
/// names the nearest.
GradCompression parse_grad_compression(const std::string& name);
std::vector<std::string> grad_compression_names();
std::string to_string(GradCompression compression);

/// The optimizer that changes the parameters after steps that each rank made by
/// itself.
enum class OuterOptimizer {
  kAverage,   ///< the mean of the ranks: local SGD
  kNesterov,  ///< SGD with Nesterov's momentum: DiLoCo
};

/// Parses "average" or "nesterov". Throws InvalidArgument, which names the
/// nearest.
OuterOptimizer parse_outer_optimizer(const std::string& name);
std::vector<std::string> outer_optimizer_names();
std::string to_string(OuterOptimizer optimizer);

/// Options for ranks that are connected by slow links. With the defaults a run
/// has the bits of one device; with other values it does not.
struct CommunicationOptions {
  GradCompression compression = GradCompression::kNone;
  int64_t powersgd_rank = 4;
  /// Steps that each rank makes by itself, with its part of each batch, before
  /// the ranks combine their parameters (OuterStep). 0: they sum their
  /// gradients in every step.
  int64_t local_steps = 0;
  OuterOptimizer outer_optimizer = OuterOptimizer::kNesterov;
  /// Default: 0.7 for kNesterov, 1 for kAverage.
  std::optional<double> outer_lr;
  double outer_momentum = 0.9;  ///< kNesterov

  bool is_local() const { return local_steps > 0; }
};

/// Throws InvalidArgument for numbers out of range.
void check(const CommunicationOptions& options);

/// Options for training. The same task and options give the same bits.
struct TrainOptions {
  Strategy strategy = Strategy::kSingle;
  /// Devices to train on. kDistributed: one for each rank of this host.
  std::vector<Device> devices;
  /// kDataParallelClassic: name of the device in `devices` that gathers the
  /// outputs and computes the loss. Empty: the first, which has the module, its
  /// gradients and the optimizer's state.
  std::string output_device;
  int64_t shards = 0;        ///< 0: one per device
  int intra_op_threads = 0;  ///< per shard; 0: the cores / shards

  int64_t batch_size = 64;  ///< over all devices
  /// Micro-batches that a device computes one after another in a step. Their
  /// gradients are summed before the update. Each device has this many shards.
  int64_t accumulate = 1;
  int64_t epochs = 1;
  int64_t max_steps = 0;  ///< 0: no limit
  uint64_t seed = 0;
  Precision precision = Precision::kFloat32;
  double clip_grad_norm = 0;  ///< 0: off
  SpikeOptions spikes;        ///< handling of spikes of the loss

  /// kDistributed, between ranks that share no memory: the state of which each
  /// rank holds only a part.
  ZeroStage zero = ZeroStage::kNone;
  CommunicationOptions communication;  ///< kDistributed

  LoadingOptions loader;
  EvaluationOptions evaluation;
  /// Weights to start from: a checkpoint, a safetensors file, or a Hugging Face
  /// folder with a GPT-2 or a Llama.
  std::string init_from;
  std::string out_dir;  ///< checkpoints and run.json; empty: none
  CheckpointOptions checkpoint;
  VerifyOptions verify;
  LogOptions log;
};

}  // namespace lockstep::train
