#include "lockstep/simulate/step.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace lockstep::simulate {
namespace {

/// Returns the x below which a standard normal variable is with `probability`,
/// by bisection.
double normal_quantile(double probability) {
  double low = -40, high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const double below = std::erfc(-middle / std::sqrt(2.0)) / 2;
    (below < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// Returns the time, divided by the mean, that a rank exceeds with probability
/// `above`. A small probability keeps its digits, unlike 1 - above.
double time_above(const Stragglers& stragglers, double above) {
  const auto& measured = stragglers.measured;
  if (!measured.empty()) {
    const double place = (1 - above) * static_cast<double>(measured.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, measured.size() - 1);
    const double part = place - static_cast<double>(low);
    return measured[low] + part * (measured[high] - measured[low]);
  }
  if (stragglers.variation == 0) return 1;
  const double variance = std::log1p(std::pow(stragglers.variation, 2));
  return std::exp(-std::sqrt(variance) * normal_quantile(above) - variance / 2);
}

/// Returns the slowest of `ranks` times, or 0 for no ranks. One draw is
/// enough: all are below t with the probability of one, to the power of
/// `ranks`.
double draw_slowest(const Stragglers& stragglers, int64_t ranks,
                    std::mt19937_64& random) {
  if (ranks == 0) return 0;
  std::uniform_real_distribution<double> uniform(0x1p-53, 1);
  const double all_below = std::log(uniform(random));
  return time_above(stragglers,
                    -std::expm1(all_below / static_cast<double>(ranks)));
}

}  // namespace

double slowest_of(const Stragglers& stragglers, int64_t ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::binomial_distribution<int64_t> slow(ranks, stragglers.slow_share);
  double sum = 0;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t count = stragglers.slow_share > 0 ? slow(random) : 0;
    sum += std::max(
        draw_slowest(stragglers, ranks - count, random),
        stragglers.slow_factor * draw_slowest(stragglers, count, random));
  }
  // compute_s is the mean of all ranks, those that are slow included.
  const double mean = 1 + stragglers.slow_share * (stragglers.slow_factor - 1);
  return sum / kSteps / mean;
}

StepTime simulate_step(const Profile& profile, const Network& network,
                       int64_t ranks, uint64_t seed) {
  const auto buckets = static_cast<double>(profile.buckets);
  StepTime step{.ranks = ranks,
                .hosts = hosts_of(network, ranks),
                .compute_s = profile.compute_s};
  step.communication_s =
      buckets * all_reduce_s(network, ranks, profile.gradient_bytes / buckets);
  // The last bucket is ready only when the computation is over.
  step.exposed_s =
      std::max(step.communication_s / buckets,
               step.communication_s - profile.overlap * profile.compute_s);
  step.waiting_s = ranks == 1
                       ? 0
                       : profile.compute_s *
                             (slowest_of(profile.stragglers, ranks, seed) - 1);
  step.step_s = step.compute_s + step.exposed_s + step.waiting_s;
  step.efficiency = step.compute_s / step.step_s;
  step.samples_per_s_of_rank = profile.samples / step.step_s;
  return step;
}

}  // namespace lockstep::simulate
