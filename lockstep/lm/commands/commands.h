#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// The commands for language models, as cli/commands.h describes them.
void add_generate(CLI::App& app);
void add_export(CLI::App& app);
void add_tokenize(CLI::App& app);

}  // namespace lockstep::cli
