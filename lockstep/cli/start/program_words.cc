#include "lockstep/cli/start/program_words.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lockstep::cli {
namespace {

std::vector<std::string> words_of_program;

// Whether the word after `argument`, an option, is its value. An unknown
// option is left to CLI11, which explains it.
bool takes_next(const CLI::App& command, const std::string& argument) {
  const bool is_long = argument.starts_with("--");
  if (is_long && argument.find('=') != std::string::npos) return false;
  if (!is_long && argument.size() > 2) return false;  // "-r3"
  const CLI::Option* option = command.get_option_no_throw(argument);
  return option != nullptr && option->get_items_expected_max() > 0;
}

}  // namespace

std::vector<std::string> split_program_words(
    const CLI::App& command, std::vector<std::string>& arguments) {
  size_t end = 0;
  size_t skip = 0;
  for (; end < arguments.size(); ++end) {
    const std::string& argument = arguments[end];
    if (argument == "--") {
      skip = 1;
      break;
    }
    if (argument.size() < 2 || argument.front() != '-') break;
    if (takes_next(command, argument)) ++end;
  }
  end = std::min(end, arguments.size());
  std::vector<std::string> words(
      arguments.begin() + static_cast<std::ptrdiff_t>(end + skip),
      arguments.end());
  arguments.resize(end);
  return words;
}

const std::vector<std::string>& program_words() { return words_of_program; }

void set_program_words(std::vector<std::string> words) {
  words_of_program = std::move(words);
}

}  // namespace lockstep::cli
