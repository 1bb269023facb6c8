#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

// What the whole program and the part of it that needs no LibTorch share.
namespace lockstep::cli {

/// In the environment of the ranks that `train`, `bench` and `step-time` start
/// themselves: an error is told by the launcher's report, once for all ranks.
inline constexpr const char* kOwnRankVariable = "LOCKSTEP_OWN_RANK";

/// The arguments the program was called with, its name first.
const std::vector<std::string>& command_line();

/// What concerns the program, not a subcommand of it: name, version, help.
void set_up(CLI::App& app);

/// Runs the subcommand that command_line() names, of those that `app` has.
/// Returns the exit code; throws what fails, BadUsage among it.
int parse_and_run(CLI::App& app);

/// Keeps the arguments as command_line() and calls `run`. What it throws is
/// printed to stderr and becomes an exit code.
int run_and_report(int argc, char** argv, const std::function<int()>& run);

/// Prints `text` to stderr and returns `code`. Under a launcher, the error is
/// its report's as well; where that is the program itself, only its report's.
int fail(int code, const std::exception& error, std::string_view text);

}  // namespace lockstep::cli
