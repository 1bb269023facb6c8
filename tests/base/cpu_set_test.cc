#include "lockstep/base/cpu_set.h"

#include <algorithm>
#include <sched.h>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

TEST(AllowedCores, AreSortedAndInTheAffinityMask) {
  const auto& cores = allowed_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  for (const int core : cores) {
    EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(core), &mask)) << core;
  }
}

TEST(PinThread, MovesTheThreadAndOnlyIt) {
  const int core = allowed_cores().back();
  int where = -1, count = 0;
  std::thread([&] {
    pin_thread({core});
    where = ::sched_getcpu();
    cpu_set_t mask;
    ::sched_getaffinity(0, sizeof mask, &mask);
    count = CPU_COUNT(&mask);
  }).join();
  EXPECT_EQ(where, core);
  EXPECT_EQ(count, 1);
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_GE(static_cast<size_t>(CPU_COUNT(&mask)), allowed_cores().size());
}

TEST(PinThread, NamesTheCoresThatDoNotExist) {
  const auto message = error_of<IoError>([] { pin_thread({99998, 99999}); });
  EXPECT_TRUE(is_error(message, ErrorCode::kCoreBinding,
                       {"99998, 99999", std::to_string(allowed_cores()[0])}));
  EXPECT_THROW(pin_thread({-1}), IoError);
  EXPECT_THROW(pin_thread({}), IoError);
}

}  // namespace
}  // namespace lockstep
