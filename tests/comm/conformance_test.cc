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
                      "groups", "callbacks", "mail_callbacks", "refusals",
                      "coalesced", "sparse", "wrap", "c10d_reducer",
                      "c10d_debug_detail", "async_bits", "async_order",
                      "async_futures", "async_messages", "async_refusals",
                      "coalesced_calls", "coalesced_kinds"),
      ranks);
}
INSTANTIATE_TEST_SUITE_P(Few, Threads, all_tasks(testing::Values(1, 2, 3)),
                         name_of_instance);
// Tier of Many/Threads: full. More ranks than cores take long.
INSTANTIATE_TEST_SUITE_P(Many, Threads, all_tasks(testing::Values(4, 8)),
                         name_of_instance);

}  // namespace
}  // namespace lockstep
