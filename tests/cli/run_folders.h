#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

// Folders of short runs, for tests of what is made from them.
namespace lockstep::run_folders {

/// Trains for 12 steps. Writes to `folder`, which also names the strategy.
inline void train_into(const std::string& folder, const std::string& strategy,
                       const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{
      "train",        "--model",
      "mlp",          "--data",
      "synthetic",    "--quiet",
      "--max-steps",  "12",
      "--batch-size", "16",
      "--strategy",   strategy,
      "--devices",    strategy == "single" ? "cpu" : "2xcpu",
      "--eval-every", "5",
      "--out-dir",    folder};
  words.insert(words.end(), more.begin(), more.end());
  const Ended ended = run_lockstep(words);
  ASSERT_EQ(ended.code, 0) << ended.err;
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

inline void write_json(const std::string& path, const nlohmann::json& json) {
  std::ofstream(path) << json.dump();
}

/// The Python of the system, which has Debian's packages.
inline const std::string kSystemPython = "/usr/bin/python3";

}  // namespace lockstep::run_folders
