#pragma once

#include <optional>

#include "lockstep/base/error.h"

namespace lockstep {

/// Returns the code of the Error that `act` throws, or nothing if it throws
/// none.
template <class Act>
std::optional<ErrorCode> error_code_of(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

}  // namespace lockstep
