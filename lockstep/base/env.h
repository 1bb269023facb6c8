#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// The environment variable `name`; nothing if it is unset or empty.
std::optional<std::string> env(const std::string& name);

/// The same as a whole number in [least, most]. Throws InvalidArgument naming
/// the variable, what it may be and what it is.
std::optional<int64_t> env_integer(const std::string& name,
                                   int64_t least = INT64_MIN,
                                   int64_t most = INT64_MAX);

/// The same as a switch: 1, true, yes, on or 0, false, no, off. Throws
/// InvalidArgument for anything else.
std::optional<bool> env_flag(const std::string& name);

}  // namespace lockstep
