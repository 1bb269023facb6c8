#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/checkpoint/info.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/rank_trace.h"

namespace lockstep::inspect {
struct Topology;
}

namespace lockstep::training {

/// The work and the memory of a device in a run.
struct DeviceReport {
  std::string name;
  int64_t samples = 0;       ///< samples that this device trained on
  double busy_fraction = 0;  ///< fraction of the time in steps
  int64_t memory_peak_bytes = 0;
  /// Bytes of gradients that were copied for other ranks because they were not
  /// made in shared memory.
  int64_t gradient_copy_bytes = 0;
};

/// A summary of step times, in seconds.
struct TimeSummary {
  double median = 0;
  double p10 = 0;  ///< 0: not known, in reports of older versions
  double p90 = 0;
  double mean = 0;
  double min = 0;
};

/// Training results of an epoch.
struct EpochReport {
  int64_t epoch = 0;
  double lr = 0;    ///< learning rate of its first step
  Metrics train{};  ///< means over the epoch's samples
};

/// Results of the model on the test data.
struct TestReport {
  Metrics metrics{};
  int64_t samples = 0;  ///< 0: there was no evaluation
};

/// An evaluation during the run.
struct EvaluationReport {
  int64_t step = 0;  ///< steps done before it
  TestReport test;
};

/// The best evaluation, if the options ask for it.
struct BestReport {
  int64_t step = -1;  ///< -1: none
  std::string metric{};
  double value = 0;
};

/// Seconds of a step by phase: means over the steps of rank 0. The phases
/// follow one another, so they add up to the step, except for time outside all
/// of them. What ranks do while they compute counts as part of the computing
/// phase.
struct PhaseReport {
  double scatter = 0, replicate = 0, forward = 0, gather = 0, backward = 0,
         reduce = 0, update = 0;
};

/// A phase of a step, with its name in reports.
struct Phase {
  const char* name;
  double PhaseReport::*seconds;
};
inline constexpr std::array<Phase, 7> kPhases{{
    {"scatter", &PhaseReport::scatter},
    {"replicate", &PhaseReport::replicate},
    {"forward", &PhaseReport::forward},
    {"gather", &PhaseReport::gather},
    {"backward", &PhaseReport::backward},
    {"reduce", &PhaseReport::reduce},
    {"update", &PhaseReport::update},
}};

/// The checks of the first step: "pending", "passed", "impossible" or "off".
struct FirstStepReport {
  std::string module = "pending";
  std::string loss = "pending";
  std::string reason;  ///< the reason why a check can't be made
};

/// Durations of steps over a run: at most 512 steps at equal intervals.
struct StepTimeHistory {
  std::vector<int64_t> steps;   ///< counted from 1
  std::vector<double> seconds;  ///< duration of each step
};

/// The environment of a run: the host and the process of rank 0.
struct RunEnvironment {
  std::string host;  ///< host name; empty: nothing is known
  std::string os;    ///< "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;
  std::string cpu_model;
  int64_t cores = 0;              ///< cores that the process may use
  int64_t memory_bytes = 0;       ///< memory of the host
  std::string cpu_capability;     ///< of LibTorch's kernels: "AVX2"
  std::string torch;              ///< the version that is loaded: "2.11.0"
  std::string compiler;           ///< compiler that Lockstep was built with
  std::vector<std::string> gpus;  ///< or devices of another accelerator
  /// Environment variables, by name, that are set and that affect the results
  /// or the speed of a run, with their values. Other variables are not kept, as
  /// they may be secret.
  std::vector<std::pair<std::string, std::string>> variables;
};

/// The description and the results of a run: run.json.
struct RunReport {
  std::string lockstep;  ///< version
  std::vector<std::string> command;
  std::string strategy;
  std::string model;
  std::string precision;  ///< "fp32"; empty in reports of older versions
  int64_t parameters = 0;
  int64_t world_size = 1;  ///< devices in use
  int64_t processes = 1;   ///< ranks, which share the devices
  int64_t shards = 1;
  int64_t intra_op_threads = 1;  ///< per shard
  int64_t batch_size = 0;
  std::vector<int64_t> split;  ///< sizes of a batch's parts, by device
  FirstStepReport first_step_check;
  std::vector<DeviceReport> devices;
  int64_t memory_shared_bytes = 0;  ///< memory that all slices share (peak)
  int64_t parameter_bytes = 0;      ///< all copies
  int64_t optimizer_state_bytes = 0;
  int64_t sent_bytes = 0;    ///< by the steps of all ranks, over tcp
  std::string resumed_from;  ///< checkpoint; empty: from the beginning
  int64_t first_step = 0;    ///< counted from 0
  int64_t steps = 0;         ///< steps done, including those before first_step
  TimeSummary step_time_s;   ///< forward to update, without the data
  double data_wait_s = 0;    ///< time spent waiting for batches, over all steps
  double total_time_s = 0;   ///< first batch to last update, data included
  double samples_per_s = 0;
  int64_t tokens_of_sample = 0;  ///< 0 except for a language model
  double flops_of_sample = 0;    ///< forward and backward; 0: not known
  /// Floating point operations per second of all devices together in matrix
  /// products, measured after the steps; 0: not measured.
  double peak_flops_per_s = 0;
  PhaseReport phases_s;
  /// Losses of the steps from first_step on, except those that were left out.
  std::vector<double> losses;
  /// Steps left out because the loss was a spike or a float16 gradient
  /// overflowed.
  int64_t skipped_steps = 0;
  int64_t rollbacks = 0;  ///< returns to a checkpoint after a spike
  std::vector<EpochReport> epochs;
  std::vector<EvaluationReport> evaluations;  ///< except the last one
  std::optional<BestReport> best;
  TestReport test;
  std::string parameter_sha256;
  std::string last_checkpoint;
  CheckpointCosts checkpoints;
  SnapshotCosts snapshots;
  int64_t recoveries = 0;  ///< attempts after which this process continued
  bool interrupted = false;
  int stop_signal = 0;  ///< signal of some rank; 0 if it is not known

  // Values that reports are made from. A run.json of an earlier version lacks
  // them.

  double started_at = 0;  ///< seconds since 1970; 0: not known
  /// The 0th, 1st, ..., 100th percentile of all step times, as defined for
  /// step_time_s. Empty: not known.
  std::vector<double> step_time_percentiles_s;
  StepTimeHistory step_times;
  /// Steps that were left out (skipped_steps), counted from 1.
  std::vector<int64_t> skipped_at;
  /// A step of median duration among the first ones after the warm-up, or among
  /// those of the trace that was asked for. At most 8 ranks.
  std::vector<RankTrace> time_line;
  RunEnvironment environment;
  /// Topology of the devices, if all of them are on rank 0's host; else null.
  std::shared_ptr<const inspect::Topology> topology;
};

/// Returns median, p10 and p90 as numpy.percentile does. Zeros without values.
TimeSummary summarize(std::vector<double> seconds);
/// Returns the 0th to the 100th percentile in the same way. Empty without
/// values.
std::vector<double> percentiles(std::vector<double> seconds);
nlohmann::json to_json(const RunReport& report);
/// Reads what to_json() wrote. Throws IoError naming the missing key.
RunReport run_report_from_json(const nlohmann::json& json);
/// Returns the same, with the keys in the order above.
nlohmann::ordered_json to_ordered_json(const RunReport& report);
/// Writes to a temporary file, then renames it.
void write_json(const std::string& path, const nlohmann::json& json);
void write_report(const std::string& path, const RunReport& report);

}  // namespace lockstep::training
