// Tier: full, by case. Each rank is a process.
#include <tuple>

#include <gtest/gtest.h>

#include "tests/comm/rank_tasks.h"

namespace lockstep::processes_test {
namespace {

using Parameters = std::tuple<std::string, std::string, int>;

std::string name_of_instance(
    const testing::TestParamInfo<Parameters>& instance) {
  const auto& [backend, task, ranks] = instance.param;
  return backend + "_" + task + "_" + std::to_string(ranks);
}

// Two ranks, and more than this machine may have cores. conformance_test.cc has
// eight ranks as threads, which would take longer as processes.
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

auto conformance(int ranks) {
  return testing::Combine(testing::Values("shm", "tcp"),
                          testing::Values("conformance"),
                          testing::Values(ranks));
}
INSTANTIATE_TEST_SUITE_P(Two, Processes, conformance(2), name_of_instance);
// Tier of Five/Processes: nightly, by case. Five ranks share two cores.
INSTANTIATE_TEST_SUITE_P(Five, Processes, conformance(5), name_of_instance);

}  // namespace
}  // namespace lockstep::processes_test
