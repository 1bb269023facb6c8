// Tests a rank that is sending to its peer when the peer is killed.
// Tier: full, by case. Each rank is a process.
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

constexpr int64_t kElements = 1 << 24;

void die_while_receiving(const ProcessGroup& world) {
  torch::Tensor received = torch::zeros({kElements});
  std::thread receiver([&] { world.broadcast(received, 0); });
  const std::atomic_ref<float> first(*received.data_ptr<float>());
  while (first.load() == 0) std::this_thread::yield();
  ::raise(SIGKILL);
}

const RankTasks lost_peer("lost_peer", [](const ProcessGroup& world) {
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

const RankTasks lost_peer_works(
    "lost_peer_works", [](const ProcessGroup& world) {
      world.barrier();
      if (world.rank() == 1) {
        world.barrier();
        ::raise(SIGKILL);
      }
      std::vector<Work> works{world.barrier(/*async_op=*/true)};
      for (int i = 0; i < 20; ++i) {
        works.push_back(world.all_reduce(torch::ones({1000}), ReduceOp::SUM,
                                         /*async_op=*/true));
      }
      works[0].wait();
      for (size_t i = 1; i < works.size(); ++i) {
        bool has_failed = false;
        try {
          works[i].wait();
        } catch (const CommError& error) {
          has_failed = error.code() == ErrorCode::kCollectiveFailed;
        }
        require(has_failed && works[i].is_completed(),
                "each Work has the error");
      }
    });

TEST(LostPeer, EndsEveryWorkThatIsQueued) {
  for (const char* backend : {"shm", "tcp"}) {
    ProcessGroupOptions options;
    options.backend(backend);
    options.timeout(std::chrono::seconds(30));
    const auto ends = run_processes("lost_peer_works", 2, options);
    EXPECT_EQ(ends[0], "") << backend;
    EXPECT_EQ(ends[1].substr(0, 8), "signal 9") << backend;
  }
}

TEST(LostPeer, IsAnErrorAndNotTheEndOfTheProcess) {
  ProcessGroupOptions options;
  options.backend("tcp");
  options.timeout(std::chrono::seconds(3));
  const auto ends = run_processes("lost_peer", 2, options);
  EXPECT_EQ(ends[0], "");
  EXPECT_EQ(ends[1].substr(0, 8), "signal 9");
}

}  // namespace
}  // namespace lockstep
