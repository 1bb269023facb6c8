#include <gtest/gtest.h>

#include "tests/accelerator/sim/accelerator.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  lockstep::sim::install();
  return RUN_ALL_TESTS();
}
