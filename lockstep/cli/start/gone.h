#pragma once

#include <string>
#include <string_view>

namespace lockstep::cli {

/// Returns what to use instead of a command that an earlier version had, as
/// the end of a message. Returns "" for any other name.
std::string instead_of_command(std::string_view name);

/// Does the same for an option, such as "--log-csv", of a command. An option
/// that several commands had is the same in all of them.
std::string instead_of_option(std::string_view name);

/// Returns the option of CMake that builds the component with the command
/// `name`, for a program that lacks it. Returns "" for any other name.
std::string option_of_command(std::string_view name);

}  // namespace lockstep::cli
