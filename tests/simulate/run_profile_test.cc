#include "lockstep/simulate/run_profile.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/output.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::simulate {
namespace {

nlohmann::json run_of(int steps) {
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    // The first tenth is slow.
    seconds.push_back(i < steps / 10 ? 5 : i % 2 == 0 ? 0.1 : 0.3);
  }
  return {{"world_size", 1},
          {"parameters", 1000},
          {"batch_size", 8},
          {"tokens_of_sample", 0},
          {"step_times", {{"steps", {1}}, {"seconds", seconds}}},
          {"checkpoints", {{"saved", 4}, {"stall_s", 2.0}}}};
}

class RunProfiles : public testing::Test {
 protected:
  RunProfile read(const nlohmann::json& run) {
    write_atomically(path_, run.dump());
    return read_run_profile(path_);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.path("run.json");
};

TEST_F(RunProfiles, HaveTheStepsWithoutTheFirst) {
  const RunProfile run = read(run_of(40));
  EXPECT_NEAR(run.profile.compute_s, 0.2, 1e-12);
  EXPECT_NEAR(run.profile.stragglers.measured.front(), 0.5, 1e-12);
  EXPECT_NEAR(run.profile.stragglers.measured.back(), 1.5, 1e-12);
  EXPECT_EQ(run.profile.gradient_bytes, 4000);
  EXPECT_EQ(run.profile.samples, 8);
  EXPECT_FALSE(run.has_tokens);
  EXPECT_EQ(run.checkpoint_s, 0.5);
}

TEST_F(RunProfiles, CountTheTokensOfALanguageModel) {
  auto json = run_of(40);
  json["tokens_of_sample"] = 128;
  const RunProfile run = read(json);
  EXPECT_TRUE(run.has_tokens);
  EXPECT_EQ(run.profile.samples, 1024);
}

TEST_F(RunProfiles, RefuseWhatIsNotEnough) {
  auto two = run_of(40);
  two["world_size"] = 2;
  auto nameless = run_of(40);
  nameless.erase("parameters");
  auto negative = run_of(40);
  negative["step_times"]["seconds"][20] = -1;
  for (const auto& bad : {two, nameless, negative, run_of(19),
                          nlohmann::json::array(), nlohmann::json(3)}) {
    EXPECT_THROW((void)read(bad), DataError) << bad.dump();
  }
  write_atomically(path_, "{");
  EXPECT_THROW((void)read_run_profile(path_), DataError);
  EXPECT_THROW((void)read_run_profile(folder_.path("none")), IoError);
}

}  // namespace
}  // namespace lockstep::simulate
