#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/report/comparison/machine_load.h"
#include "lockstep/report/comparison/phases.h"
#include "lockstep/report/comparison/speed_ratio.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// Loops that users write, by the names that they have beside the strategies:
/// DataParallel or DistributedDataParallel around the model, torch::optim,
/// backward() and step().
inline constexpr const char* kDpLoop = "dp-loop";
inline constexpr const char* kDdpLoop = "ddp-loop";

/// Whether a process for each device runs what has this name.
bool has_ranks(const std::string& strategy);
/// What device number `device` of a run is called: "cpu:0", or with ranks
/// "rank 0 cpu:0", as two hosts may have devices of one name.
std::string device_label(const train::RunReport& report, size_t device);

inline constexpr const char* kLockstep = "lockstep";
inline constexpr const char* kPyTorch = "pytorch";

/// What one process measured: its report, the seconds of each step, and what
/// the ranks did in a typical one.
struct Measurement {
  train::RunReport report;
  std::vector<double> step_times_s;
  std::vector<train::RankTrace> time_line;
};

/// One strategy of one engine, all its rounds pooled.
struct ComparedRun {
  std::string engine;
  /// Step times over all rounds, and the phases of their mean step; total time,
  /// busy fractions and memory peaks: the median round's.
  train::RunReport report;
  std::vector<double> round_medians_s;  ///< median step time of each round
  /// A typical step of the median round. Empty: not known.
  std::vector<train::RankTrace> time_line;
  /// Over Comparison::baseline; none if that did other work.
  std::optional<double> speedup;
  std::optional<Interval> speedup_interval;

  int copy = 1;  ///< counts runs of the same engine and strategy

  /// "dp", "dp #2", "PyTorch single", "PyTorch DDP".
  std::string label() const;
  /// PyTorch's ranks that are never synchronised: a bound, no contender.
  bool is_ideal() const;
  /// speedup and its interval.
  SpeedRatio speed() const;
};

struct Machine {
  int cores = 0;  ///< that this process may use
  std::string cpu_model;
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::optional<size_t> baseline;  ///< index of the run speed-ups refer to
  /// "dp_vs_single", "dp_vs_pytorch_ddp", ...: how many times as fast.
  std::vector<std::pair<std::string, double>> ratios;
  /// Of each ratio, by its name; none where rounds are too few.
  std::vector<std::pair<std::string, std::optional<Interval>>> ratio_intervals;
  /// Of each interval: confidence_of_look(). A verdict holds with 95 %.
  double confidence = 1 - kVerdictError;
  Machine machine;
  /// Of each round. Empty: not known.
  std::vector<MachineLoad> loads;
  int64_t rounds = 1;
  int64_t steps = 0;         ///< timed, of each round
  int64_t warmup = 0;        ///< before them, not timed
  bool is_of_files = false;  ///< finished runs, not measured for this
  /// What the reader must know to read the figures right.
  std::vector<std::string> notes;
};

/// Pools the rounds of one strategy. Throws InvalidArgument if there is none.
ComparedRun pool(const std::string& engine,
                 const std::vector<Measurement>& rounds);

/// How many times as fast `run` is as `other`: speed_ratio() of the rounds'
/// median step times. Of the pooled medians and without an interval, where the
/// numbers of rounds differ.
SpeedRatio speed_over(const ComparedRun& run, const ComparedRun& other,
                      double confidence);

/// Picks the baseline (Lockstep's single, else the first run), fills in the
/// speed-ups and the ratios. Runs of different work have none between them.
void relate(Comparison& comparison);

enum class DifferentWork { kRefused, kAllowed };

/// A comparison of finished training runs. `names`: what errors call them, such
/// as their files; labels without. Throws InvalidArgument for runs of different
/// work (differences_of_work()), naming both values, unless that is allowed.
Comparison compare_runs(const std::vector<train::RunReport>& reports,
                        DifferentWork different = DifferentWork::kRefused,
                        const std::vector<std::string>& names = {});
/// The same, of their run.json. Throws IoError, naming a file that is not a
/// run.json.
Comparison compare_run_files(const std::vector<std::string>& paths,
                             DifferentWork different = DifferentWork::kRefused);

nlohmann::json to_json(const Comparison& comparison);
nlohmann::json to_json(const Measurement& measurement);
/// Reads what step-time printed. Throws IoError naming the missing key.
Measurement measurement_from_json(const nlohmann::json& json);

/// Cores this process may use, and the processor's name.
Machine this_machine();

}  // namespace lockstep::report
