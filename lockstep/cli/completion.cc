#include <memory>

#include <fmt/format.h>

#include "lockstep/cli/command_tree.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/checks.h"

namespace lockstep::cli {

void add_completion(CLI::App& app) {
  auto* command = app.add_subcommand(
      "completion", "Print a completion script for bash, zsh or fish");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->type_name("NAME")
      ->check(one_of({"bash", "zsh", "fish"}));
  command->footer(
      "To try it: source <(lockstep completion bash). The first lines of the "
      "script say\nhow to install it.");
  command->callback([&app, shell] {
    const CommandWords words = command_tree(app);
    fmt::print("{}", *shell == "bash"  ? bash_completion(words)
                     : *shell == "zsh" ? zsh_completion(words)
                                       : fish_completion(words));
  });
}

}  // namespace lockstep::cli
