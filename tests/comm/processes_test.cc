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

// Fewer and more than this machine may have cores. Eight are threads, in
// conformance_test.cc: as processes they would only take longer.
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

INSTANTIATE_TEST_SUITE_P(ProcessGroup, Processes,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values("conformance"),
                                          testing::Values(2, 5)),
                         name_of_instance);

}  // namespace
}  // namespace lockstep::processes_test
