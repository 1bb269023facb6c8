#include <tuple>

#include <gtest/gtest.h>

#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using Parameters = std::tuple<std::string, std::string, int>;

std::string name_of_instance(
    const testing::TestParamInfo<Parameters>& instance) {
  const auto& [backend, task, ranks] = instance.param;
  return backend + "_" + task + "_" + std::to_string(ranks);
}

class Threads : public testing::TestWithParam<Parameters> {};

TEST_P(Threads, Conform) {
  const auto& [backend, task, ranks] = GetParam();
  ProcessGroupOptions options;
  options.backend(backend);
  options.timeout(std::chrono::seconds(100));
  run_threads(task, ranks, options);
}

template <class Ranks>
auto all_tasks(Ranks ranks) {
  return testing::Combine(
      testing::Values("shm", "tcp"),
      testing::Values("all_reduce", "reductions", "places", "moves",
                      "whole_tensors", "strided", "send_recv", "c10d_forms",
                      "groups", "callbacks", "refusals", "coalesced", "sparse",
                      "wrap", "c10d_reducer", "c10d_debug_detail", "async_bits",
                      "async_order", "async_futures", "async_inference",
                      "async_messages", "async_refusals"),
      ranks);
}
INSTANTIATE_TEST_SUITE_P(Few, Threads, all_tasks(testing::Values(1, 2, 3)),
                         name_of_instance);
// Tier of Many/Threads: full. More ranks than cores take long.
INSTANTIATE_TEST_SUITE_P(Many, Threads, all_tasks(testing::Values(4, 8)),
                         name_of_instance);

// Two ranks, and more than this machine may have cores. Eight ranks are
// threads, because they would take longer as processes.
class Processes : public testing::TestWithParam<Parameters> {};

TEST_P(Processes, Conform) {
  const auto& [backend, task, ranks] = GetParam();
  ProcessGroupOptions options;
  options.backend(backend);
  options.timeout(std::chrono::seconds(200));
  for (const auto& end : run_processes(task, ranks, options)) {
    EXPECT_EQ(end, "");
  }
}

auto in_processes(int ranks) {
  return testing::Combine(testing::Values("shm", "tcp"),
                          testing::Values("conformance"),
                          testing::Values(ranks));
}
// Tier of Two/Processes: full, by case. Each rank is a process.
INSTANTIATE_TEST_SUITE_P(Two, Processes, in_processes(2), name_of_instance);
// Tier of Five/Processes: nightly, by case. Five ranks share two cores.
INSTANTIATE_TEST_SUITE_P(Five, Processes, in_processes(5), name_of_instance);

}  // namespace
}  // namespace lockstep
