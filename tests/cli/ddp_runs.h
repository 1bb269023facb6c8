#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <vector>

#include "tests/cli/processes.h"
#include "tests/cli/program.h"

// Runs of `lockstep train --strategy ddp`, and their expected results.
namespace lockstep::ddp_runs {

using Words = std::vector<std::string>;

/// Returns the arguments of a short `lockstep train`, with `more`.
inline Words train_words(const Words& more) {
  Words words{"train",       "--model", "mlp",          "--data", "synthetic",
              "--seed",      "1",       "--shards",     "2",      "--no-eval",
              "--log-every", "1",       "--batch-size", "32"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Returns the words, each after a space.
inline std::string joined(const Words& words) {
  std::string line;
  for (const auto& word : words) line += " " + word;
  return line;
}

/// Returns the output of a shell command. `status` gets its exit code, or -1
/// after a signal.
inline std::string output_of(const std::string& command, int& status) {
  std::string text;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  for (size_t n = 0;
       (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    text.append(buffer.data(), n);
  }
  const int ended = ::pclose(pipe);
  status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  return text;
}

inline const Words kSixSteps{"--max-steps", "6"};

/// Returns the digest of the parameters after six steps on one device.
inline std::string single_digest() {
  Words words = train_words(kSixSteps);
  words.insert(words.end(), {"--strategy", "single", "--devices", "cpu"});
  return digest_in(run_lockstep(words).out);
}

/// Returns the same with the ranks of `--strategy ddp`.
inline Words ddp_words(Words more) {
  more.insert(more.end(), {"--strategy", "ddp"});
  return train_words(more);
}

}  // namespace lockstep::ddp_runs
