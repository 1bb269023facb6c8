#include "lockstep/cli/command_tree.h"

namespace lockstep::cli {
namespace {

// one_of() names its words only when it refuses one, so it is given a word
// that it refuses: "expected one of single, dp, got '?'".
std::vector<std::string> choices_of(CLI::Option& option) {
  std::string refusal;
  try {
    std::string probe = "?";
    refusal = (*option.get_validator(0))(probe);
  } catch (const CLI::OptionNotFound&) {  // takes any word
    return {};
  }
  constexpr std::string_view kBefore = "expected one of ";
  constexpr std::string_view kAfter = ", got '";
  const size_t begin = refusal.find(kBefore);
  const size_t end = refusal.find(kAfter);
  if (begin == std::string::npos || end == std::string::npos) return {};
  const size_t first = begin + kBefore.size();
  return CLI::detail::split(refusal.substr(first, end - first), ',');
}

std::vector<std::string> trimmed(std::vector<std::string> words) {
  for (auto& word : words) CLI::detail::trim(word);
  return words;
}

CommandWords words_of(CLI::App& app) {
  CommandWords words{.name = app.get_name(),
                     .description = app.get_description()};
  for (CLI::Option* option : app.get_options([](const CLI::Option* candidate) {
         return !candidate->get_group().empty();
       })) {
    const auto choices = trimmed(choices_of(*option));
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
    words.commands.push_back(words_of(*command));
  }
  return words;
}

}  // namespace

CommandWords command_tree(CLI::App& app) { return words_of(app); }

}  // namespace lockstep::cli
