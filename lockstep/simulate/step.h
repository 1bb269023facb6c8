#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/simulate/network.h"

// The time of a data-parallel step. Every rank computes its shard, and then
// waits for the slowest one and for the part of the exchange that the
// computation did not hide.
namespace lockstep::simulate {

/// The distribution of the time of a rank's computation. Every rank and step is
/// drawn independently.
struct Stragglers {
  /// Standard deviation divided by the mean of a log-normal distribution.
  double variation = 0;
  /// Measured times divided by their mean, in ascending order. They replace
  /// `variation` if they are not empty.
  std::vector<double> measured{};
  /// Share of the ranks that take `slow_factor` times as long in a step.
  double slow_share = 0;
  double slow_factor = 1;
};

/// The work of a rank in a step, which is the same at any number of ranks.
struct Profile {
  double compute_s = 0;  ///< mean
  double gradient_bytes = 0;
  int64_t buckets = 1;  ///< all-reduces that the gradients are divided into
  /// Share of compute_s during which buckets are exchanged, 0 to 1.
  double overlap = 0;
  double samples = 1;  ///< samples or tokens of a rank
  Stragglers stragglers{};
};

struct StepTime {
  int64_t ranks = 0;
  int64_t hosts = 0;
  double compute_s = 0;
  double communication_s = 0;  ///< all of it
  double exposed_s = 0;        ///< not hidden by the computation
  double waiting_s = 0;        ///< for the slowest rank
  double step_s = 0;
  double efficiency = 0;  ///< computation divided by the step
  double samples_per_s_of_rank = 0;
};

/// Returns the mean time of the slowest of `ranks` ranks divided by the mean
/// time of one, over `kSteps` steps drawn from `seed`.
double slowest_of(const Stragglers& stragglers, int64_t ranks, uint64_t seed);
inline constexpr int kSteps = 20'000;

StepTime simulate_step(const Profile& profile, const Network& network,
                       int64_t ranks, uint64_t seed);

}  // namespace lockstep::simulate
