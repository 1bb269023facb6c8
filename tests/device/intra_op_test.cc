#include "lockstep/device/intra_op.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

class IntraOpFor : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam()); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};
INSTANTIATE_TEST_SUITE_P(Threads, IntraOpFor, testing::Values(1, 2, 3));

TEST_P(IntraOpFor, CoversTheRangeOnceWithThatManyThreads) {
  for (const int64_t count : {0, 1, 2, 5, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    std::mutex mutex;
    std::set<std::thread::id> threads;
    intra_op_for(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1);
    EXPECT_EQ(static_cast<int64_t>(threads.size()),
              std::min<int64_t>(count, GetParam()));
  }
}

TEST_P(IntraOpFor, RethrowsFromAnyThread) {
  for (const int64_t bad : {0, 999}) {
    EXPECT_THROW(intra_op_for(1000,
                              [&](int64_t begin, int64_t end) {
                                if (begin <= bad && bad < end) {
                                  throw std::runtime_error("bad");
                                }
                              }),
                 std::runtime_error);
  }
}

bool exists(pid_t thread) {
  return std::filesystem::exists("/proc/self/task/" + std::to_string(thread));
}

/// Returns true once `thread` is gone. One that was joined is listed a moment
/// longer.
bool ends(pid_t thread) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (exists(thread)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_P(IntraOpFor, EndsTheIdleThreadsOfItsTeam) {
  for (int round = 0; round < 3; ++round) {
    std::mutex mutex;
    std::set<pid_t> team;
    intra_op_for(8, [&](int64_t, int64_t) {
      const std::lock_guard lock(mutex);
      team.insert(gettid());
    });
    EXPECT_EQ(team.size(), static_cast<size_t>(GetParam()));
    for (const pid_t thread : team) EXPECT_TRUE(exists(thread));
    end_idle_team_of_this_thread();
    team.erase(gettid());
    for (const pid_t thread : team) EXPECT_TRUE(ends(thread));
    end_idle_team_of_this_thread();
    EXPECT_EQ(at::get_num_threads(), GetParam());
  }
}

TEST_P(IntraOpFor, KeepsATeamThatIsAtWork) {
  std::atomic<int> parts{0};
  intra_op_for(8, [&](int64_t, int64_t) {
    end_idle_team_of_this_thread();
    ++parts;
  });
  EXPECT_EQ(parts, GetParam());
}

TEST_P(IntraOpFor, IsSerialInsideItself) {
  std::atomic<int> parts{0};
  intra_op_for(8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      intra_op_for(8, [&](int64_t, int64_t) { ++parts; });
    }
  });
  EXPECT_EQ(parts, 8);
}

}  // namespace
}  // namespace lockstep
