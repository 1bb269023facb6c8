#include "lockstep/base/env.h"

#include <cstdlib>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& expected,
                         const std::string& value) {
  throw InvalidArgument("env", {.code = ErrorCode::kBadVariable,
                                .what = "can't use the variable " + name,
                                .expected = expected,
                                .got = "'" + value + "'",
                                .fix = "correct it or unset it"});
}

}  // namespace

std::optional<std::string> env(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int64_t> env_integer(const std::string& name, int64_t least,
                                   int64_t most) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<int64_t>(*text);
  if (!value || *value < least || *value > most) {
    std::string expected = "a whole number";
    if (least != INT64_MIN) expected += fmt::format(" from {}", least);
    if (most != INT64_MAX) expected += fmt::format(" up to {}", most);
    refuse(name, expected, *text);
  }
  return value;
}

std::optional<bool> env_flag(const std::string& name) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (*text == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (*text == no) return false;
  }
  refuse(name, "1, true, yes, on or 0, false, no, off", *text);
}

}  // namespace lockstep
