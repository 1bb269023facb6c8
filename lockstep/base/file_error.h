#pragma once

#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

/// Returns the error of a call of the system that failed with `code`, an errno:
/// "can't `act` `path`: No space left on device", and what helps against it.
IoError file_error(std::string_view act, std::string_view path, int code);

}  // namespace lockstep
