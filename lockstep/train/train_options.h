#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/link.h"
#include "lockstep/parallel/exchange/verify.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep::training {

/// The way in which a run uses its devices.
enum class Strategy {
  kSingle,
  kDataParallel,
  kDataParallelClassic,
  kDistributed,  ///< DataParallel over several ranks, with a device each
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
  /// Threads that prepare batches. 0: none.
  TORCH_ARG(int, workers) = 1;
  /// Shuffles the samples anew in each epoch.
  TORCH_ARG(bool, shuffle) = true;
  /// Leaves out the last samples of an epoch if they don't fill a batch.
  TORCH_ARG(bool, drop_last) = false;
};

/// Options for evaluations on the evaluation data.
struct EvaluationOptions {
  /// Evaluates at the end of the run, and after every `every` steps.
  TORCH_ARG(bool, enabled) = true;
  /// Steps between evaluations. 0: at the end only.
  TORCH_ARG(int64_t, every) = 0;
  /// 0: the batch size of the run, or 250 if that is more.
  TORCH_ARG(int64_t, batch_size) = 0;
  /// Evaluations in a row without a better one after which the run ends. 0:
  /// never. CheckpointOptions::save_best, or else the loss, says what is
  /// better.
  TORCH_ARG(int64_t, early_stop) = 0;
};

/// Options for the saved states of a run, and for continuing from one.
struct CheckpointOptions {
  /// Steps between checkpoints. 0: at the end only.
  TORCH_ARG(int64_t, every) = 0;
  /// Also saves a checkpoint at the end of each epoch.
  TORCH_ARG(bool, each_epoch) = false;
  /// Number of newest checkpoints to keep, at least 2. 0: three, or all of them
  /// if each_epoch is set.
  TORCH_ARG(int, keep) = 0;
  /// Metric by which the checkpoint of the best evaluation is kept in
  /// out_dir/best: "loss", "accuracy", or another one. Lower is better, except
  /// for "accuracy". ":max" or ":min" after the name overrides this. Empty:
  /// none.
  TORCH_ARG(std::string, save_best);
  /// Steps between snapshots in memory, from which a lost worker is replaced.
  /// 0: none. Only under an agent that has restarts left.
  TORCH_ARG(int64_t, snapshot_every) = 1;
  /// Checkpoint to resume from, or a run's folder, which means its newest
  /// checkpoint. The run continues as if it had never stopped. "auto": from
  /// out_dir, or from the beginning if that has no checkpoint. Options that are
  /// left open (shards, threads) keep their saved values.
  TORCH_ARG(std::string, resume);
  /// Resumes even if settings differ from the checkpoint's and change the bits.
  TORCH_ARG(bool, allow_changes) = false;
};

/// Options for finding faulty hardware.
struct VerifyOptions {
  /// Steps between comparisons of the parameters and the optimizer's state of
  /// ranks that have their own copies (tcp, nccl). 0: never. Snapshots are
  /// taken at these steps. 1: train_step() also checks all memory in each step
  /// (DataParallelOptions::verify_memory).
  TORCH_ARG(int64_t, every) = 10;
  /// Steps between those whose gradients are all computed twice, and a third
  /// time where they differ (TrainStepOptions::verify_gradients). 0: never.
  TORCH_ARG(int64_t, gradients_every) = 0;
  /// Steps before which a replica is compared with the model, and the loss with
  /// the loss of the whole batch (DataParallelOptions::verify). kDoubling: also
  /// the first step of each epoch, and the last one before a checkpoint.
  TORCH_ARG(Verify, steps) = Verify::kDoubling;
  /// Several accelerators: what to do if copies between them arrive changed.
  TORCH_ARG(BadLinks, bad_links) = BadLinks::kStage;
};

/// Options for what a run tells its user.
struct LogOptions {
  /// Shows a bar on a terminal, and plain lines elsewhere.
  TORCH_ARG(bool, progress) = true;
  /// Steps between plain lines.
  TORCH_ARG(int64_t, every) = 10;
  /// Prints which device gets which part of a batch, in the first step and
  /// whenever that changes.
  TORCH_ARG(bool, shards) = false;
  /// Folder for TensorBoard's event files. Empty: none.
  TORCH_ARG(std::string, tensorboard);
  /// Path for a Chrome trace of all ranks' last steps (rank_trace.h). Empty:
  /// none.
  TORCH_ARG(std::string, trace);
  TORCH_ARG(int64_t, trace_steps) = 10;
  /// Publishes for `lockstep top` what each rank is doing: in out_dir/live, or
  /// in memory of this host.
  TORCH_ARG(bool, live_status) = true;
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

/// Options for detecting and handling spikes of the loss.
struct SpikeOptions {
  TORCH_ARG(OnSpike, action) = OnSpike::kNothing;
  /// Standard deviations above the mean of the last losses.
  TORCH_ARG(double, sigma) = 6;
  /// Number of the last losses that are looked at.
  TORCH_ARG(int64_t, window) = 128;
};

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

/// The optimizer that changes the parameters after steps that each rank made
/// independently.
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
  TORCH_ARG(GradCompression, compression) = GradCompression::kNone;
  TORCH_ARG(int64_t, powersgd_rank) = 4;
  /// Steps that each rank makes independently, with its part of each batch,
  /// before the ranks combine their parameters. 0: they sum their gradients in
  /// every step.
  TORCH_ARG(int64_t, local_steps) = 0;
  TORCH_ARG(OuterOptimizer, outer_optimizer) = OuterOptimizer::kNesterov;
  /// Learning rate of the outer optimizer. Default: 0.7 for kNesterov, 1 for
  /// kAverage.
  TORCH_ARG(std::optional<double>, outer_lr);
  /// kNesterov: the momentum.
  TORCH_ARG(double, outer_momentum) = 0.9;

 public:
  bool is_local() const { return local_steps_ > 0; }
};

/// Options for training, as in `TrainOptions().epochs(5).batch_size(64)`. The
/// same model, data and options give the same bits.
struct TrainOptions {
  TORCH_ARG(Strategy, strategy) = Strategy::kSingle;
  /// Devices to train on. kDistributed: one for each rank of this host.
  TORCH_ARG(std::vector<Device>, devices);
  /// kDataParallelClassic: name of the device in `devices` that gathers the
  /// outputs and computes the loss. Empty: the first, which has the module, its
  /// gradients and the optimizer's state.
  TORCH_ARG(std::string, output_device);
  /// Number of shards of a batch. 0: one per device.
  TORCH_ARG(int64_t, shards) = 0;
  /// Threads that compute a shard. 0: the cores / shards.
  TORCH_ARG(int, intra_op_threads) = 0;

  /// Samples of a step, over all devices.
  TORCH_ARG(int64_t, batch_size) = 64;
  /// Micro-batches that a device computes one after another in a step. Their
  /// gradients are summed before the update. Each device has this many shards.
  TORCH_ARG(int64_t, accumulate) = 1;
  TORCH_ARG(int64_t, epochs) = 1;
  /// Limit of the number of steps. 0: none.
  TORCH_ARG(int64_t, max_steps) = 0;
  TORCH_ARG(uint64_t, seed) = 0;
  TORCH_ARG(Precision, precision) = Precision::kFloat32;
  /// Limit of the norm of a step's gradient. 0: none.
  TORCH_ARG(double, clip_grad_norm) = 0;
  TORCH_ARG(SpikeOptions, spikes);

  /// kDistributed, between ranks that share no memory: the state of which each
  /// rank holds only a part.
  TORCH_ARG(ZeroStage, zero) = ZeroStage::kNone;
  /// kDistributed: what ranks send over slow links.
  TORCH_ARG(CommunicationOptions, communication);

  TORCH_ARG(LoadingOptions, loading);
  TORCH_ARG(EvaluationOptions, evaluation);
  /// Weights to start from: a checkpoint, a safetensors file, or a Hugging Face
  /// folder with a GPT-2 or a Llama.
  TORCH_ARG(std::string, init_from);
  /// Folder for checkpoints and run.json. Empty: none.
  TORCH_ARG(std::string, out_dir);
  TORCH_ARG(CheckpointOptions, checkpoint);
  TORCH_ARG(VerifyOptions, verify);
  TORCH_ARG(LogOptions, log);
};

}  // namespace lockstep::training
