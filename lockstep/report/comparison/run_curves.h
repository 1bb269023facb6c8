#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// The loss of each step that was not left out, with the step, counted from 1.
std::vector<std::pair<int64_t, double>> losses_by_step(
    const train::RunReport& report);

/// All evaluations in the order of steps, that at the end included.
std::vector<train::EvaluationReport> evaluations_of(
    const train::RunReport& report);

}  // namespace lockstep::report
