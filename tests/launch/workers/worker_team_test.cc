#include "lockstep/launch/workers/worker_team.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

TEST(WorkerEnvironment, LeavesTheUsersThreadsAlone) {
  const Group group{.node_rank = 0, .nodes = {{.host = "h", .role = "r"}}};
  const auto threads = [&](const RunOptions& options) {
    auto variables = worker_variables(options, group, {"127.0.0.1", 1}, 0, 0, 3,
                                      "error.json");
    return variables.contains("OMP_NUM_THREADS") ? variables["OMP_NUM_THREADS"]
                                                 : "inherited";
  };
  ::unsetenv("OMP_NUM_THREADS");
  RunOptions options;
  EXPECT_EQ(threads(options), "3");
  ::setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(threads(options), "inherited");
  options.omp_threads = 2;
  EXPECT_EQ(threads(options), "2");
  ::unsetenv("OMP_NUM_THREADS");
  options.omp_threads = 0;
  options.environment["OMP_NUM_THREADS"] = "5";
  EXPECT_EQ(threads(options), "5");
}

}  // namespace
}  // namespace lockstep::launch
