// Tests a program that CMake links without lm/ and tools/.
// Tier: full. It starts programs that load LibTorch.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/cli/start/gone.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::components_test {
namespace {

CommandResult run_alone(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   LOCKSTEP_BINARY_DIR "/bin/lockstep_without_components");
  return run_command({.arguments = arguments});
}

TEST(Components, HaveCommandsThatAProgramWithoutThemExplains) {
  std::set<std::string> all = commands_in(run_alone({"help"}).out);
  for (const auto& name : all) EXPECT_EQ(cli::option_of_command(name), "");
  for (const std::string name : {"compare", "bench", "plan", "top", "topo",
                                 "check", "generate", "export", "tokenize"}) {
    const auto result = run_alone({name});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_TRUE(contains(result.err, "built without the command '" + name +
                                         "'; configure it with -DLOCKSTEP_"))
        << result.err;
    all.insert(name);
  }
  // The whole program has no others.
  EXPECT_TRUE(
      std::ranges::includes(all, commands_in(run_lockstep({"help"}).out)));
}

TEST(Components, AreNotNeededToTrainAndEvaluateImages) {
  const TemporaryFolder folder;
  const auto trained = run_alone({"train", "--devices", "2xcpu", "--max-steps",
                                  "2", "--out-dir", folder.path("run")});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const auto evaluated =
      run_alone({"eval", "--checkpoint", folder.path("run"), "--json"});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_TRUE(contains(evaluated.out, "\"accuracy\"")) << evaluated.out;
}

TEST(Components, HaveModelsThatAProgramWithoutThemRefuses) {
  const auto result = run_alone({"train", "--model", "gpt-char"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "expected one of cnn, mlp")) << result.err;
}

}  // namespace
}  // namespace lockstep::components_test
