#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Returns true if `app` has subcommands. A user's own program has none.
bool has_commands(const CLI::App& app);

/// Returns the text of `error` for users: it names an unknown subcommand or
/// option and the nearest known one, and says where to find help.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

/// Returns a formatter that shows an option as `--batch-size N [64]  samples of
/// a step`.
std::shared_ptr<CLI::FormatterBase> make_formatter();

/// Returns the help of `app` itself. CLI11's help() returns the help of a
/// subcommand if one was parsed.
std::string help_of(const CLI::App& app);

/// Adds `lockstep help [command]`.
void add_help(CLI::App& app);

}  // namespace lockstep::cli
