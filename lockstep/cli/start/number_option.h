#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// Options whose values are numbers with a fraction. CLI11 reads these with
// strtold(), so that a program in German would take "0,5" for a half.

/// Adds the option `name` to `app`. Its value is a number with a point,
/// whatever the locale is.
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value,
                        const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name,
                        std::optional<double>& value,
                        const std::string& description);

}  // namespace lockstep::cli
