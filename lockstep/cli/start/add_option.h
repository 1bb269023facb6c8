#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/base/option.h"

// Adds options to a command line. CLI11 reads fractional numbers with
// strtold(), so a program with a German locale would expect "0,5" for a half.
// These options expect a decimal point, whatever the locale is.
namespace lockstep::cli {

/// Adds an option with its help, default and checks. The option's value must
/// outlive the app. Ignores Option::needs.
CLI::Option* add_option(CLI::App& app, const Option& option);

/// Adds `options`, which need only each other.
void add_options(CLI::App& app, const std::vector<Option>& options);

/// Returns the topic of a group of options that only `--help-all` shows, and an
/// empty text for any other group.
std::string topic_of_details(const std::string& group);

}  // namespace lockstep::cli
