#include "lockstep/cli/start/missing.h"

#include <algorithm>
#include <array>

namespace lockstep::cli {
namespace {

// A test compares these with the help of a program that has all components.
constexpr std::array<std::string_view, 6> kTools{"compare", "bench", "plan",
                                                 "top",     "topo",  "check"};
constexpr std::array<std::string_view, 3> kLanguageModels{"generate", "export",
                                                          "tokenize"};

}  // namespace

std::string option_of_command(std::string_view name) {
  if (std::ranges::count(kTools, name) > 0) return "LOCKSTEP_TOOLS";
  if (std::ranges::count(kLanguageModels, name) > 0) return "LOCKSTEP_LM";
  return "";
}

}  // namespace lockstep::cli
