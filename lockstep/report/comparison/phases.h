#pragma once

#include <array>
#include <optional>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

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

/// What of the mean step is in no phase, in seconds. None if the phases are
/// longer than it: they are not of the same steps then, or of a version whose
/// phases overlapped.
std::optional<double> outside_phases(const train::RunReport& report);

}  // namespace lockstep::report
