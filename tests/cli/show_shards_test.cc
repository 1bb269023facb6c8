// `train --show-shards`: how a batch is split, as the practicals print it.
// Tier: full, by case. Each case starts the program.
#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

// Returns the lines about shards, in order, of two steps on `devices` slices.
std::vector<std::string> shard_lines(const std::string& strategy, int devices,
                                     int batch_size) {
  const CommandResult result = run_command(
      {.arguments = {kProgram, "train", "--model", "cnn", "--strategy",
                     strategy, "--devices", std::to_string(devices) + "xcpu",
                     "--batch-size", std::to_string(batch_size), "--max-steps",
                     "2", "--no-eval", "--show-shards", "--oversubscribe"}});
  EXPECT_TRUE(result.ok()) << result.err;
  std::vector<std::string> lines;
  std::istringstream out(result.out);
  for (std::string line; std::getline(out, line);) {
    if (line.find("Inside model") != std::string::npos) lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

using Lines = std::vector<std::string>;

class ShowShards : public testing::TestWithParam<const char*> {};

TEST_P(ShowShards, PrintsAWholeLineForEachShard) {
  EXPECT_EQ(shard_lines(GetParam(), 2, 64),
            (Lines{"Inside model on device cpu:0, shape [32, 3, 32, 32]",
                   "Inside model on device cpu:1, shape [32, 3, 32, 32]"}));
  EXPECT_EQ(shard_lines(GetParam(), 3, 64),
            (Lines{"Inside model on device cpu:0, shape [22, 3, 32, 32]",
                   "Inside model on device cpu:1, shape [22, 3, 32, 32]",
                   "Inside model on device cpu:2, shape [20, 3, 32, 32]"}));
}

INSTANTIATE_TEST_SUITE_P(Strategies, ShowShards,
                         testing::Values("dp", "dp-classic", "ddp"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lockstep
