#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/train/rank_trace.h"
#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// The loop that a user writes, by the name that it has beside the strategies:
/// DistributedDataParallel around the model, torch::optim::SGD, backward() and
/// step().
inline constexpr const char* kOwnLoop = "ddp-loop";

/// Whether a process for each device runs what has this name.
bool has_ranks(const std::string& strategy);

inline constexpr const char* kLockstep = "lockstep";
inline constexpr const char* kPyTorch = "pytorch";

/// A part of a step, by name.
struct Phase {
  const char* name;
  double train::PhaseReport::*seconds;
};

inline constexpr std::array<Phase, 7> kPhases{{
    {"scatter", &train::PhaseReport::scatter},
    {"replicate", &train::PhaseReport::replicate},
    {"forward", &train::PhaseReport::forward},
    {"gather", &train::PhaseReport::gather},
    {"backward", &train::PhaseReport::backward},
    {"reduce", &train::PhaseReport::reduce},
    {"update", &train::PhaseReport::update},
}};

/// The sum of all phases.
double total(const train::PhaseReport& phases);

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
  /// Step times over all rounds; total time, phases, busy fractions and
  /// memory peaks: the median round's.
  train::RunReport report;
  std::vector<double> round_medians_s;  ///< median step time of each round
  /// A typical step of the median round. Empty: not known.
  std::vector<train::RankTrace> time_line;
  std::optional<double> speedup;  ///< over Comparison::baseline

  int copy = 1;  ///< counts runs of the same engine and strategy

  /// "dp", "dp #2", "PyTorch single", "PyTorch DDP".
  std::string label() const;
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
  Machine machine;
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

/// How many times as fast `run` is as `other`: the median over the rounds of
/// the ratio within a round, so that a drift of the machine cancels. Of the
/// pooled medians, where the numbers of rounds differ.
double times_as_fast(const ComparedRun& run, const ComparedRun& other);

/// Picks the baseline (Lockstep's single, else the first run), fills in the
/// speed-ups and the ratios.
void relate(Comparison& comparison);

/// A comparison of finished training runs.
Comparison compare_runs(const std::vector<train::RunReport>& reports);
/// The same, of their run.json. Throws IoError, naming a file that is not a
/// run.json.
Comparison compare_run_files(const std::vector<std::string>& paths);

nlohmann::json to_json(const Comparison& comparison);
nlohmann::json to_json(const Measurement& measurement);
/// Reads what step-time printed. Throws IoError naming the missing key.
Measurement measurement_from_json(const nlohmann::json& json);

/// Cores this process may use, and the processor's name.
Machine this_machine();

}  // namespace lockstep::report
