#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/tools/comparison/machine_load.h"
#include "lockstep/tools/comparison/run_values.h"
#include "lockstep/tools/comparison/speed_ratio.h"
#include "lockstep/tools/comparison/step_limit.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/run_report.h"

namespace lockstep::tools {

inline constexpr const char* kLockstep = "lockstep";
inline constexpr const char* kPyTorch = "pytorch";

/// Measurement of one process: its report, the seconds of each step, a trace of
/// what the ranks did in a typical step, and the limit of the step if it was
/// measured.
struct Measurement {
  training::RunReport report;
  std::vector<double> step_times_s;
  std::vector<training::RankTrace> time_line{};
  std::optional<StepLimit> limit{};
};

/// One strategy of one engine, pooled over all its rounds.
struct ComparedRun {
  std::string engine;
  /// Report of the run. Step times are those of all rounds, and phases are
  /// those of their mean step. Total time, busy fractions and memory peaks are
  /// those of the median round.
  training::RunReport report;
  std::vector<double> round_medians_s;  ///< median step time of each round
  /// A typical step of the median round. Empty if unknown.
  std::vector<training::RankTrace> time_line;
  /// Pooled over all rounds. Not set for PyTorch, on accelerators and for
  /// finished runs.
  std::optional<StepLimit> limit;
  /// Speed-up over Comparison::baseline. Not set if the baseline did different
  /// work.
  std::optional<SpeedRatio> speedup;

  int copy = 1;  ///< counts runs of the same engine and strategy
  /// Name of its folder, if another run of the comparison has the same strategy
  /// and another folder.
  std::string folder;

  /// Returns "dp", "dp (first)" with the folder, "dp #2" without,
  /// "PyTorch single", "PyTorch DDP".
  std::string label() const;
  /// Returns true for PyTorch processes that never synchronise. They are a
  /// bound, not a contender.
  bool is_ideal() const;
};

struct Machine {
  int cores = 0;  ///< cores that this process may use
  std::string cpu_model;
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::optional<size_t> baseline;  ///< index of the run speed-ups refer to
  /// Speed ratios by name: "dp_vs_single", "dp_vs_pytorch_ddp", ...
  std::vector<std::pair<std::string, SpeedRatio>> ratios;
  /// Confidence of each interval: confidence_of_verdict(). A verdict holds with
  /// 95 %.
  double confidence = 1 - kVerdictError;
  Machine machine;
  /// Load of the machine in each round. Empty if unknown.
  std::vector<MachineLoad> loads;
  int64_t rounds = 1;
  int64_t steps = 0;         ///< timed steps of each round
  int64_t warmup = 0;        ///< steps before them that are not timed
  bool is_of_files = false;  ///< finished runs, not measured now
  /// Facts that the reader needs to understand the figures.
  std::vector<std::string> notes;
};

/// Pools the rounds of one strategy. Throws InvalidArgument if `rounds` is
/// empty.
ComparedRun pool(const std::string& engine,
                 const std::vector<Measurement>& rounds);

/// Returns how many times as fast `run` is as `other`: speed_ratio() of the
/// median step times of the rounds. If the numbers of rounds differ, it is the
/// ratio of the pooled medians, without an interval.
SpeedRatio speed_over(const ComparedRun& run, const ComparedRun& other,
                      double confidence);

/// Returns the first run of an engine and a strategy, or nullptr.
const ComparedRun* find_run(const Comparison& comparison, const char* engine,
                            const char* strategy);

/// Chooses the baseline (Lockstep's single, else the first run) and fills in
/// the speed-ups and the ratios. Runs that did different work get no ratio.
void relate(Comparison& comparison);

/// Returns true if the speed-up of a run has an interval.
bool has_speedup_intervals(const Comparison& comparison);

enum class DifferentWork { kRefused, kAllowed };

/// Compares finished training runs. `names` are the names to use in errors,
/// such as the files; if empty, errors use labels. Throws InvalidArgument,
/// naming both values, for runs that did different work
/// (differences_of_work()), unless `different` allows that.
Comparison compare_runs(const std::vector<training::RunReport>& reports,
                        DifferentWork different = DifferentWork::kRefused,
                        const std::vector<std::string>& names = {});
/// Does the same for run.json files. Throws IoError, naming the file, if one of
/// them is not a run.json.
Comparison compare_run_files(const std::vector<std::string>& paths,
                             DifferentWork different = DifferentWork::kRefused);

nlohmann::json to_json(const Comparison& comparison);
nlohmann::json to_json(const Measurement& measurement);
/// Reads the output of step-time. Throws IoError naming the missing key.
Measurement measurement_from_json(const nlohmann::json& json);

/// Returns the cores that this process may use, and the processor's name.
Machine this_machine();

}  // namespace lockstep::tools
