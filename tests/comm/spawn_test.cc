#include <cstdlib>

#include <gtest/gtest.h>

#include "lockstep/comm/process_group.h"
#include "tests/base/thread_limit.h"

namespace lockstep {
namespace {

TEST(Spawn, SaysThatItCanStartNoMoreThreads) {
  // No rank may begin: it would wait for those that never come.
  EXPECT_EXIT(exit_without_threads([] {
                spawn(64, [](const ProcessGroup&) { std::_Exit(6); });
              }),
              testing::ExitedWithCode(0), "for a rank of spawn");
}

}  // namespace
}  // namespace lockstep
