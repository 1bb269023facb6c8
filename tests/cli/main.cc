#include <gtest/gtest.h>

#include "tests/cli/loaded_program.h"

int main(int argc, char** argv) {
  lockstep::loaded_program::start_server();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
