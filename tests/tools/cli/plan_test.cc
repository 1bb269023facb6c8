// Tier: full, by case. Each case starts the program.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::plan_test {
namespace {

using Words = std::vector<std::string>;

nlohmann::json plan(Words more) {
  more.insert(more.begin(), {"plan", "--json"});
  const Ended ended = run_lockstep(more);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return nlohmann::json::parse(ended.out);
}

TEST(MemoryPlan, FollowsTheDevicesAsTrainingDoes) {
  Words words{"--model", "mlp", "--devices", "2", "--memory", "4"};
  const auto open = plan(words);
  EXPECT_GT(open["shared_bytes"], 0);
  words.insert(words.end(), {"--strategy", "dp"});
  EXPECT_EQ(plan(words), open);
}

TEST(MemoryPlan, RecommendsWhatTakesLessMemoryAlone) {
  const auto mlp_plan = plan({"--model", "mlp", "--batch-size", "64"});
  // Its activations are small, but sums of gradients that wait are large.
  EXPECT_TRUE(mlp_plan["choices"].empty()) << mlp_plan;
  const auto cnn_plan = plan({"--model", "cnn", "--batch-size", "512"});
  EXPECT_FALSE(cnn_plan["choices"].empty()) << cnn_plan;
  auto least = cnn_plan["total_bytes"].get<int64_t>();
  for (const auto& choice : cnn_plan["choices"]) {
    EXPECT_LT(choice["total_bytes"], least) << cnn_plan;
    least = choice["total_bytes"];
  }
}

TEST(MemoryPlan, IsOfOneDeviceForStrategySingle) {
  const Ended ended = run_lockstep(
      {"plan", "--model", "mlp", "--strategy", "single", "--devices", "2"});
  EXPECT_EQ(ended.code, 2) << ended.err;
  for (const char* part : {"--strategy single", "--devices 2", "dp"}) {
    EXPECT_PRED2(contains, ended.err, part);
  }
}

}  // namespace
}  // namespace lockstep::plan_test
