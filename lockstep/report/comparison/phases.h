#pragma once

#include <optional>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

using train::kPhases;
using train::Phase;

/// Returns the sum of all phases.
double total(const train::PhaseReport& phases);

/// Returns the seconds of the mean step that belong to no phase. Returns
/// nullopt if the phases are longer than the step: they are then phases of
/// other steps, or come from a version whose phases overlapped.
std::optional<double> outside_phases(const train::RunReport& report);

}  // namespace lockstep::report
