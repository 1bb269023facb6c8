#pragma once

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/tables/section.h"

// Facts about runs that a page shows in addition to their times.
namespace lockstep::report {

/// Returns what each run trained, and how: model, batch, shards, start time.
Section work_section(const Comparison& comparison);
/// Returns each epoch's learning rate and metrics.
Section epoch_section(const Comparison& comparison);
/// Returns each evaluation's metrics.
Section evaluation_section(const Comparison& comparison);
/// Returns machine and software. Runs with the same environment share a column.
Section environment_section(const Comparison& comparison);
/// Returns the same table for one environment.
Section environment_section(const train::Environment& environment);

}  // namespace lockstep::report
