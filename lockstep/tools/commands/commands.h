#pragma once

#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/model_family.h"

namespace lockstep::cli {

// The commands of the tools, as cli/commands.h describes them.
void add_compare(CLI::App& app, const std::vector<MakeFamily>& families);
void add_bench(CLI::App& app);
void add_plan(CLI::App& app, const std::vector<MakeFamily>& families);
void add_topo(CLI::App& app);
void add_check(CLI::App& app);
/// Hidden. `compare` runs this in a fresh process.
void add_step_time(CLI::App& app, const std::vector<MakeFamily>& families);

}  // namespace lockstep::cli
