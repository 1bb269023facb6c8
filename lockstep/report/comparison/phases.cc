#include "lockstep/report/comparison/phases.h"

#include <algorithm>

namespace lockstep::report {

double total(const train::PhaseReport& phases) {
  double sum = 0;
  for (const Phase& phase : kPhases) sum += phases.*phase.seconds;
  return sum;
}

std::optional<double> outside_phases(const train::RunReport& report) {
  // Reading the clock between the phases takes time too.
  constexpr double kTolerance = 0.001;
  const double rest_s = report.step_time_s.mean - total(report.phases_s);
  if (rest_s < -kTolerance * report.step_time_s.mean) return std::nullopt;
  return std::max(rest_s, 0.0);
}

}  // namespace lockstep::report
