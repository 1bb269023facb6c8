#include "lockstep/simulate/failures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace lockstep::simulate {
namespace {

// A run that fails so often makes no progress.
constexpr int64_t kMaxFailures = 100'000;

struct Run {
  double time_s = 0;
  int64_t failures = 0;
};

/// Returns the time of `work_s` seconds of training, with the checkpoints
/// within it.
double with_checkpoints_s(const Failures& failures, double work_s) {
  const double intervals = std::ceil(work_s / failures.interval_s);
  return work_s + std::max(0.0, intervals - 1) * failures.checkpoint_s;
}

Run run_once(const Failures& failures, int64_t nodes, double work_s,
             std::mt19937_64& random) {
  const double restart_s = failures.detection_s + failures.recovery_s;
  const double cycle_s = failures.interval_s + failures.checkpoint_s;
  std::exponential_distribution<double> until_failure(
      1 / mean_between_failures_s(failures, nodes));
  Run run;
  double saved_s = 0;  // work up to the last checkpoint
  while (run.failures < kMaxFailures) {
    const double rest_s = with_checkpoints_s(failures, work_s - saved_s);
    double trained_s = until_failure(random);
    if (trained_s >= rest_s) {
      run.time_s += rest_s;
      return run;
    }
    saved_s += std::floor(trained_s / cycle_s) * failures.interval_s;
    run.time_s += trained_s;
    ++run.failures;
    for (;;) {
      const double lasted_s = until_failure(random);
      run.time_s += std::min(lasted_s, restart_s);
      if (lasted_s >= restart_s || run.failures >= kMaxFailures) break;
      ++run.failures;
    }
  }
  run.time_s = std::numeric_limits<double>::infinity();
  return run;
}

}  // namespace

double mean_between_failures_s(const Failures& failures, int64_t nodes) {
  return kDay / (failures.per_node_day * static_cast<double>(nodes));
}

double best_interval_s(const Failures& failures, int64_t nodes) {
  return std::sqrt(2 * failures.checkpoint_s *
                   mean_between_failures_s(failures, nodes));
}

double expected_ratio(const Failures& failures, int64_t nodes) {
  const double restart_s = failures.detection_s + failures.recovery_s;
  const double lost_s = restart_s + failures.interval_s / 2;
  return std::max(0.0, (1 - lost_s / mean_between_failures_s(failures, nodes)) /
                           (1 + failures.checkpoint_s / failures.interval_s));
}

Training simulate_training(const Failures& failures, int64_t nodes,
                           double work_s, int repeats, uint64_t seed) {
  std::mt19937_64 random(seed);
  Training mean;
  for (int i = 0; i < repeats; ++i) {
    const Run run = run_once(failures, nodes, work_s, random);
    mean.time_s += run.time_s / repeats;
    mean.failures += static_cast<double>(run.failures) / repeats;
  }
  mean.ratio = work_s / mean.time_s;
  return mean;
}

}  // namespace lockstep::simulate
