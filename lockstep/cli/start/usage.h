#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Whether `app` has subcommands: a user's own program has none.
bool has_commands(const CLI::App& app);

/// What `error` says of the command line, for people: names an unknown
/// subcommand or option and the nearest known one, and where help is.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

/// Shows an option as `--batch-size N [64]  samples of a step`.
std::shared_ptr<CLI::FormatterBase> make_formatter();

/// The help of `app` itself. CLI11's help() gives a subcommand's, if one was
/// parsed.
std::string help_of(const CLI::App& app);

/// Adds `lockstep help [command]`.
void add_help(CLI::App& app);

}  // namespace lockstep::cli
