#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/version.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

// Returns `text` for troff, with hyphens that can be copied and without escapes
// or requests.
std::string troff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool begins_line = result.empty() || result.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::vector<std::string> paragraphs_of(const std::string& text) {
  std::vector<std::string> paragraphs{""};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      paragraphs.emplace_back();
    } else {
      paragraphs.back() += line + "\n";
    }
  }
  std::erase(paragraphs, "");
  return paragraphs;
}

// Returns the text after the options of the help. If a paragraph contains an
// indented line, such as a command, its lines are kept unchanged.
std::string footer_text(const CLI::App& app) {
  std::string text;
  for (const std::string& paragraph : paragraphs_of(app.get_footer())) {
    const bool is_laid_out = paragraph.find("\n  ") != std::string::npos;
    text += ".PP\n";
    text +=
        is_laid_out ? ".nf\n" + troff(paragraph) + ".fi\n" : troff(paragraph);
  }
  return text;
}

std::string option_entry(const CLI::Option& option) {
  std::string names;
  for (const auto& name : option.get_snames()) names += "-" + name + ", ";
  for (const auto& name : option.get_lnames()) names += "--" + name + ", ";
  names.resize(names.size() - 2);
  std::string text = ".TP\n\\fB" + troff(names) + "\\fR";
  if (option.get_type_size() != 0) {
    text += " \\fI" + troff(option.get_type_name()) + "\\fR";
    const std::string& value = option.get_default_str();
    if (!value.empty()) text += " [" + troff(value) + "]";
  }
  return text + "\n" + troff(option.get_description()) + "\n";
}

std::string argument_entry(const CLI::Option& option) {
  return ".TP\n\\fI" + troff(option.get_name(/*positional=*/true)) + "\\fR\n" +
         troff(option.get_description()) + "\n";
}

std::string options_text(const CLI::App& app) {
  std::string text;
  for (const std::string& group : app.get_groups()) {
    if (group.empty()) continue;  // hidden in the help too
    for (const CLI::Option* option :
         app.get_options([&](const CLI::Option* candidate) {
           return candidate->get_group() == group;
         })) {
      text += option->get_positional() ? argument_entry(*option)
                                       : option_entry(*option);
    }
  }
  return text;
}

std::string man_page(const CLI::App& app) {
  std::string text = fmt::format(
      ".TH LOCKSTEP 1 \"\" \"Lockstep {}\" \"User Commands\"\n"
      ".SH NAME\nlockstep \\- data\\-parallel training on LibTorch\n"
      ".SH SYNOPSIS\n\\fBlockstep\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n{}",
      kVersion, troff(app.get_description()));
  text += ".PP\nThe value in brackets after an option is its default.\n";
  text += ".SH OPTIONS\n" + options_text(app) + ".SH COMMANDS\n";
  for (const CLI::App* command : app.get_subcommands(
           [](const CLI::App* one) { return !one->get_group().empty(); })) {
    text += fmt::format(".SS {}\n{}.\n", troff(command->get_name()),
                        troff(command->get_description()));
    text += options_text(*command) + footer_text(*command);
  }
  return text + ".SH NOTES\n" + footer_text(app);
}

}  // namespace

void add_man(CLI::App& app) {
  auto* command = add_command(app, "man", "Print the manual page, in troff");
  command->group("");  // hidden in the help: `man lockstep` shows it
  command->callback([&app] { fmt::print("{}", man_page(app)); });
}

}  // namespace lockstep::cli
