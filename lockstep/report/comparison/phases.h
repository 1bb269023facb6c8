#pragma once

#include <array>
#include <optional>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// A named part of a step.
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

/// Returns the sum of all phases.
double total(const train::PhaseReport& phases);

/// Returns the seconds of the mean step that belong to no phase. Returns
/// nullopt if the phases are longer than the step: they are then phases of
/// other steps, or come from a version whose phases overlapped.
std::optional<double> outside_phases(const train::RunReport& report);

}  // namespace lockstep::report
