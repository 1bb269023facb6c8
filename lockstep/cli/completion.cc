#include "lockstep/cli/completion.h"

#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/text.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

// The check of an option names the words only when it refuses one, so it is
// given a word that it refuses: "expected one of single, dp, got '?'".
std::vector<std::string> choices_of(CLI::Option& option) {
  std::string refusal;
  try {
    std::string probe = "?";
    refusal = (*option.get_validator(0))(probe);
  } catch (const CLI::OptionNotFound&) {  // takes any word
    return {};
  }
  constexpr std::string_view kBefore = "one of ";
  constexpr std::string_view kAfter = ", got '";
  const size_t begin = refusal.find(kBefore);
  const size_t end = refusal.find(kAfter);
  if (begin == std::string::npos || end == std::string::npos) return {};
  const size_t first = begin + kBefore.size();
  auto choices = CLI::detail::split(refusal.substr(first, end - first), ',');
  for (auto& choice : choices) CLI::detail::trim(choice);
  return choices;
}

std::string join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

/// Returns `text` with a backslash before each of the characters in `special`.
std::string escaped(const std::string& text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::vector<std::string> names_of(const std::vector<CommandWords>& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  return names;
}

/// Returns the words that may follow `command`: arguments, subcommands, flags.
std::string followers(const CommandWords& command) {
  std::vector<std::string> words = command.arguments;
  for (const auto& name : names_of(command.commands)) words.push_back(name);
  for (const auto& option : command.options) words.push_back(option.flag);
  return join(words);
}

bool is_path(const OptionWords& option) {
  return option.value.find("DIR") != std::string::npos ||
         option.value.find("PATH") != std::string::npos;
}

std::string zsh_option(const OptionWords& option) {
  std::string spec =
      fmt::format("{}[{}]", option.flag, escaped(option.description, "[]:\\"));
  if (!option.value.empty()) {
    spec += fmt::format(":{}:{}", escaped(option.value, ":\\"),
                        !option.choices.empty()
                            ? fmt::format("({})", join(option.choices))
                        : is_path(option) ? "_files"
                                          : " ");
  }
  return shell_quoted(spec);
}

std::string fish_option(const OptionWords& option) {
  std::string line = fmt::format(" -l {}", option.flag.substr(2));
  if (!option.choices.empty()) {
    line += fmt::format(" -x -a '{}'", join(option.choices));
  } else if (!option.value.empty()) {
    line += is_path(option) ? " -r" : " -x";
  }
  return line + fmt::format(" -d '{}'\n", escaped(option.description, "'\\"));
}

}  // namespace

CommandWords command_tree(CLI::App& app) {
  CommandWords words{.name = app.get_name(),
                     .description = app.get_description()};
  for (CLI::Option* option : app.get_options([](const CLI::Option* candidate) {
         return !candidate->get_group().empty();
       })) {
    const auto choices = choices_of(*option);
    if (option->get_lnames().empty()) {
      words.arguments.insert(words.arguments.end(), choices.begin(),
                             choices.end());
      continue;
    }
    words.options.push_back(
        {.flag = "--" + option->get_lnames().front(),
         .description = option->get_description(),
         .value = option->get_type_size() == 0 ? "" : option->get_type_name(),
         .choices = choices});
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App* candidate) {
         return !candidate->get_group().empty();
       })) {
    words.commands.push_back(command_tree(*command));
  }
  return words;
}

std::string bash_completion(const CommandWords& root) {
  std::string values, words;
  for (const auto& command : root.commands) {
    for (const auto& option : command.options) {
      if (option.value.empty()) continue;
      // If there are no words, bash completes file names (-o default).
      values += fmt::format("    {}:{}) words='{}' ;;\n", command.name,
                            option.flag, join(option.choices));
    }
    words += fmt::format("    {}:*) words='{}' ;;\n", command.name,
                         followers(command));
  }
  return fmt::format(
      "# Completion of lockstep for bash. To install it:\n"
      "#   mkdir -p ~/.local/share/bash-completion/completions\n"
      "#   lockstep completion bash"
      " > ~/.local/share/bash-completion/completions/lockstep\n"
      "_lockstep() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} command= word words=\n"
      "  for word in \"${{COMP_WORDS[@]:1:COMP_CWORD-1}}\"; do\n"
      "    case $word in {0}) command=$word; break ;; esac\n"
      "  done\n"
      "  case $command:${{COMP_WORDS[COMP_CWORD - 1]}} in\n"
      "{1}{2}"
      "    *) words='{3}' ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _lockstep lockstep\n",
      fmt::join(names_of(root.commands), "|"), values, words, followers(root));
}

std::string zsh_completion(const CommandWords& root) {
  std::string options, commands, cases;
  for (const auto& option : root.options) {
    options += " " + zsh_option(option);
  }
  for (const auto& command : root.commands) {
    const std::string entry =
        command.name + ":" + escaped(command.description, ":\\");
    commands += fmt::format("        {}\n", shell_quoted(entry));
    cases += fmt::format("      {})\n        _arguments", command.name);
    for (const auto& option : command.options) {
      cases += " \\\n          " + zsh_option(option);
    }
    const std::string rest =
        command.arguments.empty()
            ? "*:file:_files"
            : ":argument:(" + join(command.arguments) + ")";
    cases += fmt::format(" \\\n          {} ;;\n", shell_quoted(rest));
  }
  return fmt::format(
      "#compdef lockstep\n"
      "# Completion of lockstep for zsh. To install it, in a folder of "
      "$fpath:\n"
      "#   lockstep completion zsh > ~/.zsh/completions/_lockstep\n"
      "_lockstep() {{\n"
      "  local context state line commands\n"
      "  typeset -A opt_args\n"
      "  _arguments -C{} ': :->command' '*:: :->argument'\n"
      "  case $state in\n"
      "    command)\n"
      "      commands=(\n"
      "{}"
      "      )\n"
      "      _describe command commands ;;\n"
      "    argument)\n"
      "      case $line[1] in\n"
      "{}"
      "      esac ;;\n"
      "  esac\n"
      "}}\n"
      "if [ \"$funcstack[1]\" = _lockstep ]; then\n"
      "  _lockstep \"$@\"\n"
      "else\n"
      "  compdef _lockstep lockstep\n"
      "fi\n",
      options, commands, cases);
}

std::string fish_completion(const CommandWords& root) {
  std::string script =
      "# Completion of lockstep for fish. To install it:\n"
      "#   lockstep completion fish > "
      "~/.config/fish/completions/lockstep.fish\n"
      "complete -c lockstep -n __fish_use_subcommand -f\n";
  for (const auto& option : root.options) {
    script +=
        "complete -c lockstep -n __fish_use_subcommand" + fish_option(option);
  }
  for (const auto& command : root.commands) {
    script += fmt::format(
        "complete -c lockstep -n __fish_use_subcommand -a {} -d '{}'\n",
        command.name, escaped(command.description, "'\\"));
    const std::string seen =
        fmt::format("complete -c lockstep -n '__fish_seen_subcommand_from {}'",
                    command.name);
    if (!command.arguments.empty()) {
      script += fmt::format("{} -f -a '{}'\n", seen, join(command.arguments));
    }
    for (const auto& option : command.options) {
      script += seen + fish_option(option);
    }
  }
  return script;
}

void add_completion(CLI::App& app) {
  auto* command =
      add_command(app, "completion", "Print a completion script for the shell");
  auto shell = std::make_shared<std::string>();
  add_option(*command, {.name = "shell",
                        .value = shell.get(),
                        .help = "bash, zsh or fish",
                        .words = {"bash", "zsh", "fish"},
                        .is_required = true});
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
