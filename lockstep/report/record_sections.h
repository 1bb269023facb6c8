#pragma once

#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"
#include "lockstep/report/comparison.h"
#include "lockstep/report/sections.h"

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
/// How devices are connected.
Section matrix_section(const inspect::Topology& topology);

/// As it can be given to a shell again.
std::string command_text(const std::vector<std::string>& command);

}  // namespace lockstep::report
