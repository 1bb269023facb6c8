#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

// Functions shared by the whole program and by the part of it that needs no
// LibTorch.
namespace lockstep::cli {

/// Variable in the environment of the ranks that `train`, `bench` and
/// `step-time` start themselves. The launcher's report then shows an error once
/// for all ranks.
inline constexpr const char* kOwnRankVariable = "LOCKSTEP_OWN_RANK";

/// Returns the arguments of the program, starting with its name.
const std::vector<std::string>& command_line();

/// Returns whether the part of the program that has LibTorch must run
/// `command`, the word after the program's name, or "" if there is none.
bool needs_torch(std::string_view command);

/// Sets up what belongs to the program and not to a subcommand: name, version,
/// help.
void set_up(CLI::App& app);

/// Adds a subcommand. If files called CLI11's add_subcommand() directly, each
/// would compile CLI11's parser and formatter.
CLI::App* add_command(CLI::App& app, std::string name, std::string description);

/// Runs the subcommand of `app` that command_line() names. Returns the exit
/// code. Throws the errors of the subcommand, and BadUsage.
int parse_and_run(CLI::App& app);

/// Stores the arguments for command_line() and calls `run`. Exceptions are
/// printed to stderr and become an exit code.
int run_and_report(int argc, char** argv, const std::function<int()>& run);

/// Prints `text` to stderr and returns `code`. Under a launcher, the error is
/// also recorded for the launcher's report. If this program itself is the
/// launcher, only the report shows it.
int fail(int code, const std::exception& error, std::string_view text);

/// Returns the program and the arguments that `lockstep run` should run.
const std::vector<std::string>& program_words();

}  // namespace lockstep::cli
