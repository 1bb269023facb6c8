// Tier: nightly. A tool.
#include <string>

#include <gtest/gtest.h>

#include "lockstep/tools/measurement/pytorch_peer.h"

namespace lockstep::tools {
namespace {

TEST(PyTorchScript, MeasuresWhatItIsTold) {
  const auto peer = find_pytorch();
  if (!peer.missing.empty()) GTEST_SKIP() << peer.missing;
  const Work work{.model = "mlp", .batch_size = 5, .steps = 2, .warmup = 1};
  for (const std::string strategy : {"single", "ddp"}) {
    auto command = pytorch_command(peer, work, strategy, 2, 2);
    command.deadline_s = 240;
    const auto result = run_command(command);
    ASSERT_TRUE(result.ok()) << describe_end(result, command) << result.err;
    const auto measured = pytorch_measurement(result.out, strategy, command);
    // 6 x (1024 x 1024 + 1024) + 1024 x 10 + 10.
    EXPECT_EQ(measured.report.parameters, 6307850);
    EXPECT_EQ(measured.step_times_s.size(), 2u);
    EXPECT_EQ(measured.report.processes, strategy == "ddp" ? 2 : 1);
    EXPECT_EQ(measured.report.world_size, strategy == "ddp" ? 2 : 1);
  }
}

}  // namespace
}  // namespace lockstep::tools
