#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error_code.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {

/// Returns a code as messages show it: "[bad-option]".
inline std::string in_brackets(ErrorCode code) {
  return "[" + std::string(name_of(code)) + "]";
}

/// Fails if a line of `message` has more than one code, such as those of an
/// error and of its cause.
inline void expect_one_code(const std::string& message) {
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    int codes = 0;
    for (const ErrorCode code : all_error_codes()) {
      const std::string text = in_brackets(code);
      for (size_t at = 0; (at = line.find(text, at)) != std::string::npos;
           at += text.size()) {
        ++codes;
      }
    }
    EXPECT_LE(codes, 1) << line;
  }
}

/// Expects that `message` belongs to an error with `code` and contains each of
/// `names`: options, files, devices, values. The other words may change.
inline void expect_problem(const std::string& message, ErrorCode code,
                           const std::vector<std::string>& names) {
  expect_one_code(message);
  EXPECT_PRED2(contains, message, in_brackets(code));
  for (const std::string& name : names) EXPECT_PRED2(contains, message, name);
}

}  // namespace lockstep
