#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// The subcommands that need no LibTorch, as cli/commands.h describes them.
void add_run(CLI::App& app);
void add_split(CLI::App& app);
void add_data(CLI::App& app);
/// Watches a job. A build without tools/ adds nothing.
void add_top(CLI::App& app);

}  // namespace lockstep::cli
