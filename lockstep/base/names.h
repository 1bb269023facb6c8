#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

/// The values of an enum with their names in options.
template <class T>
using Names = std::span<const std::pair<T, const char*>>;

template <class T>
std::vector<std::string> all_names(Names<T> known) {
  std::vector<std::string> names;
  for (const auto& [value, name] : known) names.emplace_back(name);
  return names;
}

/// Returns the value named `text`. Otherwise throws InvalidArgument, which says
/// what kind of name is expected (`what`) and suggests the nearest.
template <class T>
T value_named(Names<T> known, const char* what, const std::string& text) {
  for (const auto& [value, name] : known) {
    if (text == name) return value;
  }
  throw InvalidArgument("options",
                        {.code = ErrorCode::kUnknownName,
                         .what = fmt::format("unknown {} '{}'", what, text),
                         .fix = did_you_mean(text, all_names(known))});
}

/// Returns the name of `value`. Throws InvalidArgument if it has no name.
template <class T>
std::string name_of(Names<T> known, const char* what, T value) {
  for (const auto& [other, name] : known) {
    if (other == value) return name;
  }
  throw InvalidArgument("options",
                        {.code = ErrorCode::kUnknownName,
                         .what = fmt::format("{} without a name", what)});
}

}  // namespace lockstep
