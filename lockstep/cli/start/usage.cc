#include "lockstep/cli/start/usage.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/gone.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

// Returns the subcommands that the help shows. A command without a group is
// internal.
std::vector<const CLI::App*> commands(const CLI::App& app) {
  return app.get_subcommands(
      [](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : commands(app)) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

const CLI::App& chosen_command(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : *commands.front();
}

std::string unknown_command(const CLI::App& app, const std::string& name) {
  if (const auto instead = instead_of_command(name); !instead.empty()) {
    return fmt::format("[usage] the command '{}' is gone; {}", name, instead);
  }
  if (const auto option = option_of_command(name); !option.empty()) {
    return fmt::format(
        "[usage] this program was built without the command '{}'; configure "
        "it with -D{}=ON, and build it again",
        name, option);
  }
  return fmt::format("[usage] unknown command '{}'; {}", name,
                     did_you_mean(name, command_names(app)));
}

std::string unknown_option(const CLI::App& command, const std::string& given,
                           const std::string& help) {
  std::string name = given.substr(0, given.find('='));
  if (const auto instead = instead_of_option(name); !instead.empty()) {
    return fmt::format("[usage] the option '{}' is gone; {}", name, instead);
  }
  const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
  const std::string near = nearest(name.substr(dashes), option_names(command));
  const std::string hint =
      near.empty() ? "see" : fmt::format("did you mean '--{}'? See", near);
  return fmt::format("[usage] unknown option '{}'; {} `{}`", name, hint, help);
}

constexpr size_t kHelpColumn = 34;
constexpr size_t kHelpWidth = 80;

class Formatter : public CLI::Formatter {
 public:
  // CLI11's formatter leaves empty lines where a group is hidden.
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    // CLI11 calls this for each command in the help of all of them.
    shows_details_ = mode == CLI::AppFormatMode::All ||
                     (mode == CLI::AppFormatMode::Sub && shows_details_);
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) {
      text.erase(at, 1);
    }
    return text;
  }

  std::string make_group(
      std::string group, bool is_positional,
      std::vector<const CLI::Option*> options) const override {
    if (const std::string topic = topic_of_details(group); !topic.empty()) {
      if (!shows_details_) return "";
      group = topic;
    }
    return CLI::Formatter::make_group(std::move(group), is_positional,
                                      std::move(options));
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrap(CLI::Formatter::make_option_desc(option),
                kHelpWidth - kHelpColumn);
  }

  std::string make_footer(const CLI::App* app) const override {
    std::string text;
    const auto details = app->get_options([](const CLI::Option* option) {
      return !topic_of_details(option->get_group()).empty();
    });
    if (!details.empty() && !shows_details_) {
      text = fmt::format(
          "\n--help-all shows {}.\n",
          counted(static_cast<long long>(details.size()), "more option"));
    }
    if (app->get_footer().empty()) return text;
    text += "\n";
    std::istringstream lines(app->get_footer());
    for (std::string line; std::getline(lines, line);) {
      if (line.size() > kHelpWidth) line.erase(0, line.find_first_not_of(' '));
      text += wrap(line, kHelpWidth) + "\n";
    }
    return text;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = " " + option->get_type_name();
    const std::string& value = option->get_default_str();
    if (!value.empty()) text += " [" + value + "]";
    return text;
  }

 private:
  mutable bool shows_details_ = false;  // in the help that is being made
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_formatter() {
  auto formatter = std::make_shared<Formatter>();
  formatter->column_width(kHelpColumn);
  return formatter;
}

std::string help_of(const CLI::App& app) {
  return app.get_formatter()->make_help(&app, app.get_name(),
                                        CLI::AppFormatMode::Normal);
}

bool has_commands(const CLI::App& app) {
  return !app.get_subcommands([](const CLI::App*) { return true; }).empty();
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(app);
  const bool is_root = &command == &app && has_commands(app);
  const std::string help = is_root ? "lockstep help"
                           : &command == &app
                               ? app.get_name() + " --help"
                               : "lockstep help " + command.get_name();
  const auto extras = command.remaining();
  for (const auto& extra : extras) {
    if (extra.size() > 1 && extra.front() == '-') {
      return unknown_option(command, extra, help);
    }
  }
  if (!extras.empty()) {
    if (is_root) return unknown_command(app, extras.front());
    return fmt::format("[usage] unexpected argument '{}'; see `{}`",
                       extras.front(), help);
  }
  const std::string text = lockstep::text_of(error);
  // The text may end in "did you mean '...'?".
  return fmt::format("[usage] {}{} `{}`", text,
                     text.ends_with('?') ? " See" : "; see", help);
}

void add_help(CLI::App& app) {
  auto* command =
      add_command(app, "help", "Show this help, or the help of a command");
  auto topic = std::make_shared<std::string>();
  command->add_option("command", *topic, "the command to explain")
      ->default_str("all of them");
  command->callback([topic, &app] {
    if (topic->empty()) {
      fmt::print("{}", help_of(app));
      return;
    }
    for (const auto* found : commands(app)) {
      if (found->get_name() != *topic) continue;
      fmt::print("{}", found->help("lockstep"));
      return;
    }
    throw BadUsage(unknown_command(app, *topic));
  });
}

}  // namespace lockstep::cli
