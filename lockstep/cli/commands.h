#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// A subcommand that ends with an exit code other than 0 throws
// CLI::RuntimeError(code). base/exit_code.h has the codes.

// Each subcommand has one file. Those that need no LibTorch are in start/. Each
// function adds its subcommand and its options to `app`. The subcommand's
// callback does the work and throws errors.
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_export(CLI::App& app);
void add_plan(CLI::App& app);
void add_run(CLI::App& app);
void add_compare(CLI::App& app);
void add_bench(CLI::App& app);
void add_split(CLI::App& app);
void add_top(CLI::App& app);
void add_data(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_topo(CLI::App& app);
void add_check(CLI::App& app);
void add_completion(CLI::App& app);
/// Hidden. `compare` runs this in a fresh process.
void add_step_time(CLI::App& app);

/// Runs the whole program: parses the arguments, runs the subcommand, prints
/// errors to stderr and turns them into an exit code. For an unknown subcommand
/// or option, the error suggests the nearest one.
int run_program(int argc, char** argv);

}  // namespace lockstep::cli
