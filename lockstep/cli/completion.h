#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct OptionWords {
  std::string flag;  ///< "--batch-size"
  std::string description;
  std::string value;  ///< "N"; empty if the option takes no value
  std::vector<std::string> choices;  ///< possible values, if they are limited
};

/// Words that can be typed for the program or for one of its subcommands.
struct CommandWords {
  std::string name;
  std::string description;
  std::vector<OptionWords> options;
  std::vector<std::string> arguments;  ///< choices of positional arguments
  std::vector<CommandWords> commands;
};

/// Returns the words of `app`, without those that its help hides.
CommandWords command_tree(CLI::App& app);

/// Each returns a script that completes these words. A comment at its beginning
/// explains how to install it.
std::string bash_completion(const CommandWords& root);
std::string zsh_completion(const CommandWords& root);
std::string fish_completion(const CommandWords& root);

}  // namespace lockstep::cli
