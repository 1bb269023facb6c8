#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/accelerator/sim/accelerator.h"

// SIM_SEED=n in the environment gives the streams other delays.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  lockstep::sim::Options options;
  if (const char* seed = std::getenv("SIM_SEED"))
    options.seed = std::stoull(seed);
  lockstep::sim::install(options);
  const int result = RUN_ALL_TESTS();
  lockstep::sim::stop_streams();
  return result;
}
