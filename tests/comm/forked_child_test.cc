// A child of fork() has copies of the groups, sockets and shared memory of a
// rank. Whatever it does to them must not reach the rank.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/run_in_child.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep::forked_child_test {
namespace {

bool is_refused(const std::function<void()>& act) {
  try {
    act();
  } catch (const CommError& error) {
    return std::string(error.what()).find("forked") != std::string::npos;
  }
  return false;
}

class ForkedChild : public testing::TestWithParam<const char*> {};

TEST_P(ForkedChild, LeavesTheGroupOfItsParentAlone) {
  ProcessGroupOptions options;
  options.backend(GetParam()).timeout(std::chrono::seconds(60));
  spawn(
      2,
      [](const ProcessGroup& world) {
        std::optional<ProcessGroup> group = world.new_group({0, 1});
        at::Tensor ones = torch::ones({1000});
        // Starts the threads of the group.
        group->all_reduce(ones, ReduceOp::SUM, /*async_op=*/true).wait();
        const std::string end = run_in_child([&] {
          const bool all = is_refused([&] { group->all_reduce(ones); }) &&
                           is_refused([&] { group->barrier(); }) &&
                           is_refused([&] {
                             world.new_group({0, 1});
                           });
          group.reset();
          return all;
        });
        require(end.empty(), end);
        const at::Tensor sum = torch::ones({1000});
        group->all_reduce(sum);
        require(torch::equal(sum, torch::full({1000}, 2.0)), "the sum");
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Backends, ForkedChild, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

TEST(ForkedChildOfShm, LeavesSharedMemoryAlone) {
  ProcessGroupOptions options;
  options.backend("shm").timeout(std::chrono::seconds(60));
  spawn(
      2,
      [](const ProcessGroup& world) {
        SharedMemory memory = world.shared_memory(4096);
        at::Tensor mine = memory.tensor(world.rank(), 0, {8}, torch::kFloat);
        const at::Tensor other =
            memory.tensor(1 - world.rank(), 0, {8}, torch::kFloat);
        mine.fill_(5);
        world.barrier();
        const std::string end = run_in_child([&] {
          const bool was_there = torch::equal(mine, torch::full({8}, 5.0));
          mine.zero_();
          other.zero_();
          return was_there;
        });
        require(end.empty(), end);
        world.barrier();
        require(torch::equal(mine, torch::full({8}, 5.0)), "the values");
      },
      options);
}

}  // namespace
}  // namespace lockstep::forked_child_test
