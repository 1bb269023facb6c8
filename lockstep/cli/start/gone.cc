#include "lockstep/cli/start/gone.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace lockstep::cli {
namespace {

using Gone = std::pair<std::string_view, std::string_view>;

// docs/migrating.md has a row for each.
constexpr Gone kCommands[] = {
    {"doctor", "use `lockstep check`"},
    {"check-links", "use `lockstep check`"},
    {"report", "use `lockstep compare --runs A,B --html FILE`"},
    {"man", "use `lockstep --help-all`"},
    {"simulate", "use bench/simulate.py of the sources"},
};

constexpr Gone kOptions[] = {
    {"--csv", "use --tensorboard, or a callback as in docs/own-model.md"},
    {"--ca-file", "set $CURL_CA_BUNDLE to the file, which curl reads"},
    {"--spare-worker",
     "leave it out: workers that are lost load LibTorch again, in about 0.6 s"},
};

// A test compares these with the help of a program that has all components.
constexpr std::array<std::string_view, 6> kTools{"compare", "bench", "plan",
                                                 "top",     "topo",  "check"};
constexpr std::array<std::string_view, 3> kLanguageModels{"generate", "export",
                                                          "tokenize"};

std::string find(std::span<const Gone> rows, std::string_view name) {
  for (const auto& [gone, instead] : rows) {
    if (gone == name) return std::string(instead);
  }
  return "";
}

}  // namespace

std::string instead_of_command(std::string_view name) {
  return find(kCommands, name);
}

std::string instead_of_option(std::string_view name) {
  return find(kOptions, name);
}

std::string option_of_command(std::string_view name) {
  if (std::ranges::count(kTools, name) > 0) return "LOCKSTEP_TOOLS";
  if (std::ranges::count(kLanguageModels, name) > 0) return "LOCKSTEP_LM";
  return "";
}

}  // namespace lockstep::cli
