#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

/// The words of `command`, quoted so that a shell reads them as they are.
std::string command_text(const std::vector<std::string>& command);

}  // namespace lockstep::report
