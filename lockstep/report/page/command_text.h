#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

/// Returns the words of `command`, quoted so that a shell reads them unchanged.
std::string command_text(const std::vector<std::string>& command);

}  // namespace lockstep::report
