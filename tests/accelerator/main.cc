#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/links.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/collectives.h"
#include "tests/parallel/tested_devices.h"

// SIM_SEED=n in the environment gives the streams other delays.
int main(int argc, char** argv) {
  // The suites of tests/parallel in this program use these.
  lockstep::tested::kind() = {.type = lockstep::sim::kSim,
                              .backends = {"simccl", "shm", "tcp"}};
  testing::InitGoogleTest(&argc, argv);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  lockstep::sim::Options options;
  if (const char* seed = std::getenv("SIM_SEED"))
    options.seed = std::stoull(seed);
  lockstep::sim::install(options);
  lockstep::sim::install_collectives();
  // The check takes seconds, and has tests of its own.
  for (const auto& link : lockstep::links_between(lockstep::devices("sim"))) {
    lockstep::set_copy_path(link, lockstep::CopyPath::kDirect);
  }
  const int result = RUN_ALL_TESTS();
  lockstep::sim::stop_streams();
  return result;
}
