#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// Options with fractional numbers. CLI11 reads such numbers with strtold(), so
// a program with a German locale would expect "0,5" for a half.

/// Adds the option `name` to `app`. Its value is a number with a decimal point,
/// whatever the locale is.
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value,
                        const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name,
                        std::optional<double>& value,
                        const std::string& description);

}  // namespace lockstep::cli
