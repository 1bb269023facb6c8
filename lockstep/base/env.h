#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// Returns the environment variable `name`, or nothing if it is unset or empty.
std::optional<std::string> env(const std::string& name);

/// Returns the variable as a whole number in [least, most]. Otherwise throws
/// InvalidArgument with the variable's name, its value and the allowed range.
std::optional<int64_t> env_integer(const std::string& name,
                                   int64_t least = INT64_MIN,
                                   int64_t most = INT64_MAX);

/// Returns the variable as a switch: 1, true, yes, on or 0, false, no, off.
/// Throws InvalidArgument for anything else.
std::optional<bool> env_flag(const std::string& name);

}  // namespace lockstep
