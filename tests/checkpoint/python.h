#pragma once

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep {

/// Returns the output of the script in `file`, run by the Python that has
/// PyTorch. Fails the test with that output if the script fails.
inline std::string run_python_file(const std::string& file,
                                   const std::vector<std::string>& arguments) {
  std::string command =
      std::string("'") + LOCKSTEP_TEST_PYTHON + "' '" + file + "'";
  for (const auto& argument : arguments) command += " '" + argument + "'";
  command += " 2>&1";
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen");
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.append(buffer, got);
  }
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << output;
  return output;
}

/// Runs the text `script` in the same way.
inline std::string run_python(const std::string& script,
                              const std::string& argument = "") {
  const TemporaryFolder folder;
  const std::string file = folder.path("script.py");
  write_text(file, script);
  return run_python_file(file, {argument});
}

/// Returns whether that Python has `module`. If not, the test should skip.
inline bool python_has(const std::string& module) {
  const std::string command = std::string("'") + LOCKSTEP_TEST_PYTHON +
                              "' -c 'import " + module + "' 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

}  // namespace lockstep
