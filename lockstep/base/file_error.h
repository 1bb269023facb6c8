#pragma once

#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

/// Returns the error for a system call that failed with `code`, an errno:
/// "can't `act` `path`: No space left on device", and how to fix it.
IoError file_error(std::string_view act, std::string_view path, int code);

}  // namespace lockstep
