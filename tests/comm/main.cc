#include <cstdlib>

#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "tests/comm/rank_tasks.h"

// A test that needs ranks in processes starts this program again as each.
int main(int argc, char** argv) {
  // c10d's Reducer then takes its buckets from the backend, if that has any.
  ::setenv("DDP_DISABLE_COMM_MEM", "0", /*overwrite=*/0);
  if (const auto task = lockstep::env("LOCKSTEP_TEST_TASK")) {
    return lockstep::run_as_rank(*task);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
