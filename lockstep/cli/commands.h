#pragma once

#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/model_family.h"

namespace lockstep::cli {

// A subcommand that ends with an exit code other than 0 throws
// CLI::RuntimeError(code). base/exit_code.h has the codes.

// Each subcommand of the main program that needs LibTorch has one file here;
// start/commands.h declares the others. Each function adds its subcommand and
// its options to `app`. The subcommand's callback does the work and throws
// errors.
void add_train(CLI::App& app, const std::vector<MakeFamily>& families);
void add_eval(CLI::App& app, const std::vector<MakeFamily>& families);
void add_completion(CLI::App& app);

}  // namespace lockstep::cli
