#pragma once

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/tables/section.h"
#include "lockstep/train/environment.h"

// What a page shows of runs beside their times.
namespace lockstep::report {

/// What each run trained, and how: model, batch, shards, when.
Section work_section(const Comparison& comparison);
/// Each epoch's learning rate and metrics.
Section epoch_section(const Comparison& comparison);
/// Each evaluation's metrics.
Section evaluation_section(const Comparison& comparison);
/// Machine and software. Runs that had the same have one column together.
Section environment_section(const Comparison& comparison);
/// The same of one environment.
Section environment_section(const train::Environment& environment);

}  // namespace lockstep::report
