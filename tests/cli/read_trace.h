#pragma once

#include <string>

#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {

/// Reads a Chrome trace in Python, and returns what it has in words.
inline std::string read_trace(const std::string& path) {
  return run_python(
      content_of(LOCKSTEP_SOURCE_DIR "/tests/train/check_trace.py"), path);
}

/// Returns whether read_trace() can run.
inline bool has_python() { return !std::string(LOCKSTEP_TEST_PYTHON).empty(); }

}  // namespace lockstep
