#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// Returns the loss of each recorded step with its step number, counted from 1.
std::vector<std::pair<int64_t, double>> losses_by_step(
    const train::RunReport& report);

/// Returns all evaluations in the order of steps, including the one at the end.
std::vector<train::EvaluationReport> evaluations_of(
    const train::RunReport& report);

}  // namespace lockstep::report
