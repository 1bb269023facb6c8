#include "lockstep/report/page/command_text.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace lockstep::report {
namespace {

bool is_plain(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
         std::string_view("-_./:=,+@%").find(letter) != std::string_view::npos;
}

}  // namespace

std::string command_text(const std::vector<std::string>& command) {
  std::string text;
  for (const auto& word : command) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char letter : word) {
      text += letter == '\'' ? "'\\''" : std::string(1, letter);
    }
    text += '\'';
  }
  return text;
}

}  // namespace lockstep::report
