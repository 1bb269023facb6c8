#pragma once

#include <cstdint>

// Training that failures of nodes interrupt. After a failure has been noticed,
// the job restarts and repeats its work since the last checkpoint.
namespace lockstep::simulate {

inline constexpr double kDay = 86'400;

struct Failures {
  double per_node_day = 0;
  double detection_s = 0;
  double recovery_s = 0;    ///< restart and load, until the next step
  double checkpoint_s = 0;  ///< time that training stops for a checkpoint
  double interval_s = 0;    ///< training between two checkpoints
};

/// Returns the mean time between failures of any of `nodes` nodes.
double mean_between_failures_s(const Failures& failures, int64_t nodes);

/// Returns the interval of Young and Daly, sqrt(2 w M), for a checkpoint that
/// takes w and a mean time M between failures.
double best_interval_s(const Failures& failures, int64_t nodes);

/// Returns the expected effective training time ratio by the formula of Meta's
/// study, (1 - N r (u + d/2)) / (1 + w/d); at least 0. It assumes that no
/// failure occurs while a job recovers.
double expected_ratio(const Failures& failures, int64_t nodes);

/// A simulated training, as the mean of several.
struct Training {
  double time_s = 0;
  double failures = 0;
  double ratio = 0;  ///< effective training time ratio: work divided by time
};

/// Simulates training that takes `work_s` without failures and checkpoints,
/// `repeats` times. Failures also interrupt a recovery, which then starts
/// again. The time is infinite, and the ratio 0, if a run makes no progress.
Training simulate_training(const Failures& failures, int64_t nodes,
                           double work_s, int repeats, uint64_t seed);

}  // namespace lockstep::simulate
