#include "lockstep/launch/fault_log.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/launch/clock.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

Failure failure_at(double time_s) {
  Failure failure;
  failure.rank = 3;
  failure.host = "node7";
  failure.exit_code = 2;
  failure.message = "no such shard\nand more";
  failure.time_s = time_s;
  return failure;
}

TEST(FaultLog, SaysWhenWhoWhyAndWhatItCost) {
  FaultLog log;
  EXPECT_EQ(log.text(), "");
  const Failure failure = failure_at(1e9 + 60);
  log.add(&failure, "unused", 1e9);
  log.recovered(1e9 + 62.5);
  log.add(nullptr, "rank 9 on node8 failed", 1e9);
  EXPECT_PRED2(contains, log.text(), "[launch] 1 failure survived\n");
  log.recovered(2e9);
  EXPECT_PRED2(contains, log.text(), "[launch] 2 failures survived\n");
  EXPECT_PRED2(contains, log.text(), local_time(failure.time_s));
  EXPECT_PRED2(contains, log.text(),
               "rank 3 on node7: exit code 2: no such shard (after 60.0 s; 2.5 "
               "s until all ran again)\n");
  EXPECT_PRED2(contains, log.text(), "  rank 9 on node8 failed (after ");
}

TEST(FaultLog, SaysHowManyStepsWereLost) {
  FaultLog log;
  log.went_on(1e9, 0);
  const Failure failure = failure_at(1e9 + 60);
  log.add(&failure, "unused", 1e9, 41);
  log.recovered(1e9 + 61);
  log.went_on(1e9 + 63, 40);
  EXPECT_PRED2(contains, log.text(),
               "(after 60.0 s and 41 steps; 3.0 s until all ran again, 1 steps "
               "lost)\n");
}

TEST(FaultLog, DoesNotWaitAfterAnAttemptThatGotOn) {
  FaultLog log;
  for (uint64_t step = 5; step < 50; step += 5) {
    log.went_on(1e9, step - 1);
    const Failure quick = failure_at(1e9 + 1);
    log.add(&quick, "", 1e9, step);
    EXPECT_EQ(log.delay_s(), 0);
    EXPECT_FALSE(log.is_stuck());
  }
}

TEST(FaultLog, KnowsWhatFailsAtTheSameStepEachTime) {
  FaultLog log;
  const Failure failure = failure_at(1e9 + 1);
  const auto fail_after = [&](std::optional<uint64_t> steps) {
    log.add(&failure, "", 1e9, steps);
    return log.is_stuck();
  };
  EXPECT_FALSE(fail_after(7));
  EXPECT_FALSE(fail_after(7));
  EXPECT_FALSE(fail_after(8));
  EXPECT_FALSE(fail_after(8));
  EXPECT_TRUE(fail_after(8));
  EXPECT_PRED2(contains, log.why_stuck(), "3 times in a row after step 8");
  // Of a program that does not tell its steps nothing is known.
  EXPECT_FALSE(fail_after({}));
  EXPECT_FALSE(fail_after({}));
  EXPECT_FALSE(fail_after({}));
}

TEST(FaultLog, WaitsLongerWhileAttemptsFailAtOnce) {
  FaultLog log;
  std::vector<double> delays;
  for (int i = 0; i < 9; ++i) {
    const Failure quick = failure_at(1e9 + 1);
    log.add(&quick, "", 1e9);
    delays.push_back(log.delay_s());
  }
  EXPECT_EQ(delays, (std::vector<double>{0, 1, 2, 4, 8, 16, 30, 30, 30}));
  const Failure late = failure_at(1e9 + 1000);
  log.add(&late, "", 1e9);
  EXPECT_EQ(log.delay_s(), 0);
}

}  // namespace
}  // namespace lockstep::launch
