// `lockstep compare --pytorch`, which starts PyTorch's own ranks.
// Tier: nightly, by case. A tool, and it starts PyTorch.
#include <string>

#include <gtest/gtest.h>

#include "lockstep/tools/measurement/pytorch_peer.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"
#include "tests/tools/cli/comparisons.h"

namespace lockstep::compare_pytorch_test {
namespace {

using namespace comparisons;  // NOLINT

TEST(CompareWithPyTorch, LeavesNoRankOfPyTorchBehindWhenInterrupted) {
  if (const auto peer = tools::find_pytorch(); !peer.missing.empty()) {
    GTEST_SKIP() << peer.missing;
  }
  const std::string seed = rare_number();
  // Waits for compare, the launcher and its two ranks, which are visible from
  // their start. The part before them makes only a few steps, so it ends in
  // time on a busy machine.
  const auto result =
      interrupt_when(compare({"--strategies", "single", "--pytorch", "--steps",
                              "40", "--seed", seed}),
                     seed, 4);
  EXPECT_EQ(result.end, CommandResult::End::kStopped) << result.err;
  EXPECT_TRUE(all_end(seed, 30)) << processes_with(seed) << " are left";
}

TEST(CompareWithPyTorch, TimesPyTorchOnTheSameWork) {
  if (const auto peer = tools::find_pytorch(); !peer.missing.empty()) {
    GTEST_SKIP() << peer.missing;
  }
  const TemporaryFolder folder;
  const auto report = folder.path("cmp.json");
  const Ended ended = run_lockstep(
      compare({"--strategies", "single,dp", "--pytorch", "--report", report}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = read_json(report);
  ASSERT_EQ(result["runs"].size(), 4u);
  EXPECT_EQ(result["runs"][2]["engine"], "pytorch");
  EXPECT_EQ(result["runs"][3]["strategy"], "ddp");
  EXPECT_EQ(result["runs"][2]["parameters"], result["runs"][0]["parameters"]);
  for (const char* name : {"dp_vs_single", "dp_vs_pytorch_single",
                           "dp_vs_pytorch_ddp", "single_vs_pytorch_single"}) {
    EXPECT_GT(result["ratios"].at(name).get<double>(), 0) << name;
  }
}

}  // namespace
}  // namespace lockstep::compare_pytorch_test
