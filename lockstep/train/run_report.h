#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/checkpoint/costs.h"
#include "lockstep/inspect/topology.h"
#include "lockstep/train/environment.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/run_records.h"

namespace lockstep::train {

/// What a device did in a run.
struct DeviceReport {
  std::string name;
  int64_t samples = 0;       ///< trained on by this device
  double busy_fraction = 0;  ///< of the time in steps
  int64_t memory_peak_bytes = 0;
  /// Of gradients that had to be copied for other ranks, as they were not made
  /// in shared memory.
  int64_t gradient_copy_bytes = 0;
};

/// Of the times of steps, in seconds.
struct TimeSummary {
  double median = 0;
  double p10 = 0;  ///< 0: not known, in reports of older versions
  double p90 = 0;
  double mean = 0;
  double min = 0;
};

/// How training went in an epoch.
struct EpochReport {
  int64_t epoch = 0;
  double lr = 0;    ///< of its first step
  Metrics train{};  ///< means over the epoch's samples
};

/// How the model did on the test data.
struct TestReport {
  Metrics metrics{};
  int64_t samples = 0;  ///< 0: there was no evaluation
};

/// An evaluation while the run went on.
struct EvaluationReport {
  int64_t step = 0;  ///< steps done before it
  TestReport test;
};

/// The best evaluation, where the options ask for it.
struct BestReport {
  int64_t step = -1;  ///< -1: none
  std::string metric{};
  double value = 0;
};

/// Seconds of a step by phase, means over the steps of rank 0: whose steps are
/// timed. Phases follow one upon the other, so that they add up to the step but
/// for what is in none of them. What ranks do while they compute is in the
/// phase that computes.
struct PhaseReport {
  double scatter = 0, replicate = 0, forward = 0, gather = 0, backward = 0,
         reduce = 0, update = 0;
};

/// The checks of the first step, as lockstep::to_string(StepCheck) has them.
struct FirstStepReport {
  std::string module = "pending";
  std::string loss = "pending";
  std::string reason;  ///< why one can't be made
};

/// What a run was and what came of it: run.json.
struct RunReport {
  std::string lockstep;  ///< version
  std::vector<std::string> command;
  std::string strategy;
  std::string model;
  std::string precision;  ///< "fp32"; empty in reports of older versions
  int64_t parameters = 0;
  int64_t world_size = 1;  ///< devices at work
  int64_t processes = 1;   ///< ranks, which share them
  int64_t shards = 1;
  int64_t intra_op_threads = 1;  ///< of a shard
  int64_t batch_size = 0;
  std::vector<int64_t> split;  ///< of a batch over the devices
  FirstStepReport first_step_check;
  std::vector<DeviceReport> devices;
  int64_t memory_shared_bytes = 0;  ///< that all slices share (peak)
  int64_t parameter_bytes = 0;      ///< all copies
  int64_t optimizer_state_bytes = 0;
  int64_t sent_bytes = 0;    ///< by the steps of all ranks, over gloo
  std::string resumed_from;  ///< checkpoint; empty: from the beginning
  int64_t first_step = 0;    ///< counted from 0
  int64_t steps = 0;         ///< done, those before first_step included
  TimeSummary step_time_s;   ///< forward to update, without the data
  double data_wait_s = 0;    ///< waited for batches, in all steps together
  double total_time_s = 0;   ///< first batch to last update, data included
  double samples_per_s = 0;
  int64_t tokens_of_sample = 0;  ///< of a language model
  double flops_of_sample = 0;    ///< forward and backward; 0: not known
  /// Floating point operations a second that all devices at once reach in
  /// products of matrices, measured after the steps; 0: not measured.
  double peak_flops_per_s = 0;
  PhaseReport phases_s;
  /// Of each step from first_step on, but for those that were left out.
  std::vector<double> losses;
  /// Left out: the loss was a spike, or in float16 a gradient overflowed.
  int64_t skipped_steps = 0;
  int64_t rollbacks = 0;  ///< to a checkpoint, after a spike
  std::vector<EpochReport> epochs;
  std::vector<EvaluationReport> evaluations;  ///< those before the last one
  std::optional<BestReport> best;
  TestReport test;
  std::string parameter_sha256;
  std::string last_checkpoint;
  CheckpointCosts checkpoints;
  SnapshotCosts snapshots;
  int64_t recoveries = 0;  ///< attempts after which this process went on
  bool interrupted = false;
  int stop_signal = 0;  ///< some rank's; 0 if that is not known

  // What reports are made of. A run.json of an earlier version lacks it.

  double started_at = 0;  ///< seconds since 1970; 0: not known
  /// The 0th, 1st, ..., 100th percentile of all steps' times, as in
  /// step_time_s. Empty: not known.
  std::vector<double> step_time_percentiles_s;
  StepTimeHistory step_times;
  /// The steps that were left out (skipped_steps), counted from 1.
  std::vector<int64_t> skipped_at;
  MemoryHistory memory;
  /// A step of median duration among the first ones after the warm-up, or
  /// among those of the trace that was asked for; of 8 ranks at most.
  std::vector<RankTrace> time_line;
  Environment environment;
  /// Of the devices, where all of them are rank 0's host's.
  std::optional<inspect::Topology> topology;
};

/// Median, p10 and p90 as numpy.percentile has them. Zeros for no values.
TimeSummary summarize(std::vector<double> seconds);
/// The 0th to the 100th percentile, in the same way. Empty for no values.
std::vector<double> percentiles(std::vector<double> seconds);
nlohmann::json to_json(const RunReport& report);
/// Reads what to_json() wrote. Throws IoError naming the missing key.
RunReport run_report_from_json(const nlohmann::json& json);
/// The same with its keys in the order above.
nlohmann::ordered_json to_ordered_json(const RunReport& report);
/// Written aside and renamed.
void write_json(const std::string& path, const nlohmann::json& json);
void write_report(const std::string& path, const RunReport& report);

}  // namespace lockstep::train
