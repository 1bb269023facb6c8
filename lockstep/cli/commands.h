#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// A subcommand that ends with another exit code than 0 throws
// CLI::RuntimeError(code); base/exit_code.h has the codes.

// One file a subcommand: in start/ those that need no LibTorch. Each adds
// itself to `app` with its options; the subcommand's callback does the work,
// and throws what fails.
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_export(CLI::App& app);
void add_plan(CLI::App& app);
void add_run(CLI::App& app);
void add_compare(CLI::App& app);
void add_report(CLI::App& app);
void add_bench(CLI::App& app);
void add_split(CLI::App& app);
void add_top(CLI::App& app);
void add_data(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_doctor(CLI::App& app);
void add_topo(CLI::App& app);
void add_check(CLI::App& app);
/// Hidden: the links between devices, for a process that has a deadline.
void add_check_links(CLI::App& app);
void add_completion(CLI::App& app);
/// Hidden: prints the manual page that is installed.
void add_man(CLI::App& app);
/// Hidden: what `compare` runs in a fresh process.
void add_step_time(CLI::App& app);

/// The whole program: parses, runs, prints errors to stderr and turns them
/// into an exit code. Unknown subcommands and options suggest the nearest.
int run_program(int argc, char** argv);

}  // namespace lockstep::cli
