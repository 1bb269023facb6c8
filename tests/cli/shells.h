#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/cli/program.h"

namespace lockstep {

/// Runs a script with the path of the program in $LOCKSTEP.
inline CommandResult run_shell(const std::string& shell,
                               const std::string& script) {
  return run_command({.arguments = {shell, "-c", script},
                      .environment = {{"LOCKSTEP", kProgram}},
                      .deadline_s = 60});
}

inline bool has_shell(const std::string& shell) {
  return run_shell("sh", "command -v " + shell).ok();
}

/// Returns the words that bash offers after `typed`. The last word of `typed`
/// is incomplete.
inline std::vector<std::string> bash_offers(const std::string& typed) {
  const auto result = run_shell(
      "bash", "source <(\"$LOCKSTEP\" completion bash); COMP_WORDS=(" + typed +
                  "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lockstep; "
                  "printf '%s\\n' \"${COMPREPLY[@]}\"");
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_EQ(result.err, "");
  std::vector<std::string> words;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) words.push_back(line);
  }
  return words;
}

}  // namespace lockstep
