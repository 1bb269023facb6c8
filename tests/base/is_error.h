#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/base/error_code.h"

namespace lockstep {

/// Returns whether the message of an Error has this code and contains all of
/// `names`: ranks, paths, hosts, options. The other words may change.
inline testing::AssertionResult is_error(
    std::string_view message, ErrorCode code,
    std::initializer_list<std::string_view> names = {}) {
  const std::string suffix = " [" + std::string(name_of(code)) + "]";
  if (!message.ends_with(suffix)) {
    return testing::AssertionFailure()
           << "no" << suffix << " at the end of: " << message;
  }
  for (const std::string_view name : names) {
    if (message.find(name) == std::string_view::npos) {
      return testing::AssertionFailure()
             << "no '" << name << "' in: " << message;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace lockstep
