#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"
#include "tests/cli/program.h"

// Very short comparisons, and their processes.
namespace lockstep::comparisons {

using nlohmann::json;
using Arguments = std::vector<std::string>;

/// Runs the smallest possible comparison, with the options `more`.
inline Arguments compare(const Arguments& more) {
  Arguments all{"compare"};
  const std::vector<std::pair<std::string, std::string>> defaults{
      {"--model", "mlp"}, {"--batch-size", "8"}, {"--steps", "2"},
      {"--warmup", "1"},  {"--rounds", "1"},     {"--devices", "2xcpu"},
  };
  for (const auto& [option, value] : defaults) {
    if (std::find(more.begin(), more.end(), option) != more.end()) continue;
    all.insert(all.end(), {option, value});
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

/// Returns the number of processes that were started with `word` among their
/// arguments.
inline int processes_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line;
    while (std::getline(file, line, '\0')) {
      if (line == word) {
        ++count;
        break;
      }
    }
  }
  return count;
}

inline bool all_end(const std::string& word, double deadline_s) {
  const Stopwatch watch;
  while (processes_with(word) > 0) {
    if (watch.seconds() > deadline_s) return false;
    ::usleep(10'000);
  }
  return true;
}

/// Ends the comparison with SIGTERM when `count` of its processes are working.
inline CommandResult interrupt_when(const Arguments& arguments,
                                    const std::string& word, int count) {
  Command command;
  command.arguments = {kProgram};
  command.arguments.insert(command.arguments.end(), arguments.begin(),
                           arguments.end());
  command.deadline_s = 240;
  command.stop = [&] { return processes_with(word) >= count; };
  return run_command(command);
}

/// Returns a number that no other process has among its arguments.
inline std::string rare_number() {
  return "77" + std::to_string(::getpid()) + "01";
}

}  // namespace lockstep::comparisons
