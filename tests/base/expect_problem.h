#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error_code.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {

/// How a message tells its code: "[bad-option]".
inline std::string in_brackets(ErrorCode code) {
  return "[" + std::string(name_of(code)) + "]";
}

/// `message` is of an error with `code` and has each of `names`: options,
/// files, devices, values. Its other words may change.
inline void expect_problem(const std::string& message, ErrorCode code,
                           const std::vector<std::string>& names) {
  EXPECT_PRED2(contains, message, in_brackets(code));
  for (const std::string& name : names) EXPECT_PRED2(contains, message, name);
}

}  // namespace lockstep
