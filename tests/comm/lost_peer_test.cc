// What becomes of a rank whose peer is killed while it sends to that.
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

constexpr int64_t kElements = 1 << 24;

void die_while_receiving(const World& world) {
  torch::Tensor received = torch::zeros({kElements});
  std::thread receiver([&] { world.broadcast(received, 0); });
  const std::atomic_ref<float> first(*received.data_ptr<float>());
  while (first.load() == 0) std::this_thread::yield();
  ::raise(SIGKILL);
}

const RankTasks lost_peer("lost_peer", [](const World& world) {
  world.barrier();
  if (world.rank() == 1) die_while_receiving(world);
  torch::Tensor sent = torch::ones({kElements});
  int failures = 0;
  for (int round = 0; round < 3; ++round) {
    try {
      world.broadcast(sent, 0);
      world.barrier();
    } catch (const CommError&) {
      ++failures;
    }
  }
  require(failures == 3, "a call with a lost peer did not fail");
});

TEST(SlowLostPeer, IsAnErrorAndNotTheEndOfTheProcess) {
  WorldOptions options;
  options.backend = "gloo";
  // Gloo does not notice that the peer of a half-sent message is gone.
  options.timeout = std::chrono::seconds(3);
  const auto ends = run_processes("lost_peer", 2, options);
  EXPECT_EQ(ends[0], "");
  EXPECT_EQ(ends[1].substr(0, 8), "signal 9");
}

}  // namespace
}  // namespace lockstep
