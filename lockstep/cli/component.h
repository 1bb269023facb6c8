#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/model_family.h"

namespace lockstep::cli {

using AddCommand = std::function<void(CLI::App&)>;

/// A part of the program that a build can leave out. A component that is left
/// out is empty.
struct Component {
  std::string heading;  ///< of its commands in the help
  std::vector<AddCommand> commands;
  std::vector<AddCommand> hidden_commands;  ///< for the program itself
  std::vector<MakeFamily> families;
};

/// Returns the language models: lm/commands/component.cc, or
/// cli/program/no_lm.cc without LOCKSTEP_LM.
Component lm_component();

/// Returns the tools, which measure models of `families`:
/// tools/commands/component.cc, or cli/program/no_tools.cc without
/// LOCKSTEP_TOOLS.
Component tools_component(const std::vector<MakeFamily>& families);

}  // namespace lockstep::cli
