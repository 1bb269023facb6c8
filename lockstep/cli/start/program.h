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

/// Adds a subcommand. CLI11's add_subcommand() would make every file that calls
/// it compile CLI11's parser and formatter.
CLI::App* add_command(CLI::App& app, std::string name, std::string description);

/// Runs the subcommand that command_line() names, of those that `app` has.
/// Returns the exit code; throws what fails, BadUsage among it.
int parse_and_run(CLI::App& app);

/// Keeps the arguments as command_line() and calls `run`. What it throws is
/// printed to stderr and becomes an exit code.
int run_and_report(int argc, char** argv, const std::function<int()>& run);

/// Prints `text` to stderr and returns `code`. Under a launcher, the error is
/// its report's as well; where that is the program itself, only its report's.
int fail(int code, const std::exception& error, std::string_view text);

/// Takes from the end of `arguments`, which follow the name of `command`, what
/// is a program of the user's with its own arguments, and returns it: all from
/// the first word that is neither an option of `command` nor an option's value,
/// or all after "--". CLI11 must not see it: it would take options and
/// brackets for its own.
std::vector<std::string> split_program_words(
    const CLI::App& command, std::vector<std::string>& arguments);

/// What `lockstep run` is to run.
const std::vector<std::string>& program_words();
void set_program_words(std::vector<std::string> words);

}  // namespace lockstep::cli
