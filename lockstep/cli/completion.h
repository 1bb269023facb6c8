#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct OptionWords {
  std::string flag;  ///< "--batch-size"
  std::string description;
  std::string value;                 ///< "N"; empty if it takes none
  std::vector<std::string> choices;  ///< of the value, if it is one of some
};

/// What can be typed: the program, or one subcommand of it.
struct CommandWords {
  std::string name;
  std::string description;
  std::vector<OptionWords> options;
  std::vector<std::string> arguments;  ///< choices of positional arguments
  std::vector<CommandWords> commands;
};

/// The words of `app` without what its help hides.
CommandWords command_tree(CLI::App& app);

/// Scripts that complete these words, each with a head that says how to
/// install it.
std::string bash_completion(const CommandWords& root);
std::string zsh_completion(const CommandWords& root);
std::string fish_completion(const CommandWords& root);

}  // namespace lockstep::cli
