#pragma once

#include <string>
#include <string_view>

namespace lockstep::cli {

/// Returns the option of CMake that builds the component with the command
/// `name`, for a program that lacks it. Returns "" for any other name.
std::string option_of_command(std::string_view name);

}  // namespace lockstep::cli
