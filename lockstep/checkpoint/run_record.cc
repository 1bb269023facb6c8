#include "lockstep/checkpoint/run_record.h"

#include <set>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr size_t kShown = 100;  // letters shown of a value in a file

std::string value_of(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "nothing" : found->second;
}

}  // namespace

std::vector<Difference> differences(const Settings& saved,
                                    const Settings& now) {
  std::set<std::string> names;
  for (const auto& [name, value] : saved) names.insert(name);
  for (const auto& [name, value] : now) names.insert(name);
  std::vector<Difference> found;
  for (const std::string& name : names) {
    const std::string before = value_of(saved, name);
    const std::string after = value_of(now, name);
    if (before == after) continue;
    found.push_back(
        {.name = name,
         .text = fmt::format("{}: {} in the checkpoint, {} now", name,
                             before.substr(0, kShown), after)});
  }
  return found;
}

}  // namespace lockstep
