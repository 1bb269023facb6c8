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

// Two suites, so that they can run in parallel.
auto all_of(const char* backend) {
  return testing::Combine(
      testing::Values(backend),
      testing::Values("all_reduce", "reductions", "places", "moves",
                      "whole_tensors", "strided", "send_recv", "c10d_forms",
                      "groups", "callbacks", "mail_callbacks", "refusals",
                      "coalesced", "sparse", "wrap", "c10d_reducer",
                      "c10d_debug_detail", "async_bits", "async_order",
                      "async_futures", "async_messages", "async_refusals",
                      "coalesced_calls", "coalesced_kinds"),
      testing::Values(1, 2, 3, 4, 8));
}
INSTANTIATE_TEST_SUITE_P(Shm, Threads, all_of("shm"), name_of_instance);
INSTANTIATE_TEST_SUITE_P(Tcp, Threads, all_of("tcp"), name_of_instance);

}  // namespace
}  // namespace lockstep
