#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/comm/rank_tasks.h"

int main(int argc, char** argv) {
  // c10d's Reducer then takes its buckets from the backend, if that has any.
  ::setenv("DDP_DISABLE_COMM_MEM", "0", /*overwrite=*/0);
  lockstep::start_rank_server();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
