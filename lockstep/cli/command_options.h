#pragma once

#include <string>

#include <CLI/CLI.hpp>

// Options that several commands have. They are bound to values that must
// outlive the app.
namespace lockstep::cli {

/// Adds an option for fp32 or bf16, the precision that is measured.
void add_precision_option(CLI::App& app, std::string& precision);

/// Adds --checkpoint, which must be given.
void add_checkpoint_option(CLI::App& app, std::string& checkpoint);

}  // namespace lockstep::cli
