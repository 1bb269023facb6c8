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

TEST(WorkerEnvironment, ShowsEachWorkerOnlyItsGpu) {
  const Group group{.node_rank = 0,
                    .nodes = {{.host = "h", .workers = 2, .role = "r"}}};
  RunOptions options;
  options.workers = 2;
  options.has_virtual_local_rank = true;
  ::setenv("CUDA_VISIBLE_DEVICES", "4,6", 1);
  const auto variables =
      worker_variables(options, group, {"127.0.0.1", 1}, 1, 0, 1, "error.json");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(variables.at("LOCAL_RANK"), "0");
  EXPECT_EQ(variables.at("RANK"), "1");
  EXPECT_EQ(variables.at("CUDA_VISIBLE_DEVICES"), "6");
}

TEST(WorkerEnvironment, CountsTheWorkersOfTheNodesBefore) {
  const Group group{.node_rank = 1,
                    .nodes = {{.host = "a", .workers = 3, .role = "r"},
                              {.host = "b", .workers = 2, .role = "r"}}};
  RunOptions options;
  options.workers = 2;
  const auto variables =
      worker_variables(options, group, {"127.0.0.1", 1}, 1, 0, 1, "error.json");
  EXPECT_EQ(variables.at("RANK"), "4");
  EXPECT_EQ(variables.at("LOCAL_RANK"), "1");
  EXPECT_EQ(variables.at("GROUP_RANK"), "1");
  EXPECT_EQ(variables.at("ROLE_RANK"), "4");
  EXPECT_EQ(variables.at("WORLD_SIZE"), "5");
  EXPECT_EQ(variables.at("LOCAL_WORLD_SIZE"), "2");
}

// A worker with a GPU has no reason to leave the cores near it. Without GPUs,
// workers compute on their slices of the job's cores.
TEST(WorkerEnvironment, HasTheJobsCoresIfWorkersComputeOnThem) {
  const Group group{.node_rank = 0,
                    .nodes = {{.host = "h", .workers = 2, .role = "r"}}};
  RunOptions options;
  options.workers = 2;
  options.bound_cores.per_worker = {{1, 3}, {0, 2}};
  const auto cores = [&] {
    auto variables = worker_variables(options, group, {"127.0.0.1", 1}, 0, 0, 2,
                                      "error.json");
    return variables["LOCKSTEP_CORES"];
  };
  EXPECT_EQ(cores(), "1,3,0,2");
  options.is_bound_to_gpus = true;
  EXPECT_EQ(cores(), "");
}

}  // namespace
}  // namespace lockstep::launch
