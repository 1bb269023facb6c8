#include "lockstep/launch/failure/fault_log.h"

#include <csignal>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/launch/failure/clock.h"
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
  // The wall clock does not matter.
  const Failure failure = failure_at(1e9 - 5000);
  log.add({.root = &failure, .why = "unused", .began_s = 7, .failed_s = 67});
  log.recovered(69.5);
  log.add({.why = "rank 9 on node8 failed", .began_s = 70, .failed_s = 71});
  EXPECT_FALSE(contains(log.text(), "node8")) << "it is not survived yet";
  log.recovered(72);
  EXPECT_PRED2(contains, log.text(), local_time(failure.time_s));
  for (const char* part : {"rank 3 on node7", "no such shard", "60.0 s",
                           "2.5 s", "rank 9 on node8 failed"}) {
    EXPECT_PRED2(contains, log.text(), part);
  }
}

TEST(FaultLog, SaysHowManyStepsWereLost) {
  FaultLog log;
  log.began_training(100, 0);
  const Failure failure = failure_at(1e9);
  log.add({.root = &failure, .began_s = 100, .failed_s = 160, .steps = 41});
  log.recovered(161);
  log.began_training(163, 40);
  for (const char* part : {"60.0 s", "41 steps", "3.0 s", "1 step lost"}) {
    EXPECT_PRED2(contains, log.text(), part);
  }
}

TEST(FaultLog, DoesNotWaitAfterAnAttemptThatGotOn) {
  FaultLog log;
  for (uint64_t step = 5; step < 50; step += 5) {
    log.began_training(100, step - 1);
    const Failure quick = failure_at(1e9);
    log.add({.root = &quick, .began_s = 100, .failed_s = 101, .steps = step});
    EXPECT_EQ(log.delay_s(), 0);
    EXPECT_FALSE(log.is_stuck());
  }
}

TEST(FaultLog, KnowsWhatFailsAtTheSameStepEachTime) {
  FaultLog log;
  const Failure failure = failure_at(1e9 + 1);
  const auto fail_after = [&](std::optional<uint64_t> steps) {
    log.add(
        {.root = &failure, .began_s = 100, .failed_s = 101, .steps = steps});
    return log.is_stuck();
  };
  EXPECT_FALSE(fail_after(7));
  EXPECT_FALSE(fail_after(7));
  EXPECT_FALSE(fail_after(8));
  EXPECT_FALSE(fail_after(8));
  EXPECT_TRUE(fail_after(8));
  EXPECT_PRED2(contains, log.why_stuck(), "step 8");
  // Nothing is known about a program that does not report its steps.
  EXPECT_FALSE(fail_after({}));
  EXPECT_FALSE(fail_after({}));
  EXPECT_FALSE(fail_after({}));
}

TEST(FaultLog, BlamesNoProgramForKillsFromOutside) {
  FaultLog log;
  const auto fail_after = [&](const Failure& failure, uint64_t steps) {
    log.add(
        {.root = &failure, .began_s = 100, .failed_s = 101, .steps = steps});
    return log.is_stuck();
  };
  const Failure programs = failure_at(1e9);
  Failure killed;
  killed.signal = SIGKILL;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(fail_after(killed, 8));
  // A kill in between doesn't reset the count of the program's own failures.
  EXPECT_FALSE(fail_after(programs, 8));
  EXPECT_FALSE(fail_after(programs, 8));
  EXPECT_FALSE(fail_after(killed, 8));
  EXPECT_TRUE(fail_after(programs, 8));
  // But it shows that the program makes progress.
  EXPECT_FALSE(fail_after(programs, 9));
  EXPECT_FALSE(fail_after(programs, 9));
  EXPECT_FALSE(fail_after(killed, 10));
  EXPECT_FALSE(fail_after(programs, 9));
}

TEST(FaultLog, BlamesTheProgramThatHangsOrCrashes) {
  Failure hung;
  hung.signal = SIGKILL;
  hung.message = "hung for 2 s";
  Failure crashed;
  crashed.signal = SIGSEGV;
  for (const Failure& failure : {hung, crashed}) {
    FaultLog log;
    for (int i = 0; i < 3; ++i) {
      log.add({.root = &failure, .began_s = 100, .failed_s = 101, .steps = 8});
    }
    EXPECT_TRUE(log.is_stuck());
  }
}

TEST(FaultLog, BlamesNoProgramForLostNodes) {
  FaultLog log;
  for (int i = 0; i < 3; ++i) {
    log.add({.is_node_lost = true, .began_s = 1, .failed_s = 2, .steps = 8});
  }
  EXPECT_FALSE(log.is_stuck());
}

TEST(FaultLog, WaitsLongerWhileAttemptsFailAtOnce) {
  FaultLog log;
  std::vector<double> delays;
  for (int i = 0; i < 9; ++i) {
    const Failure quick = failure_at(1e9);
    log.add({.root = &quick, .began_s = 100, .failed_s = 101});
    delays.push_back(log.delay_s());
  }
  EXPECT_EQ(delays, (std::vector<double>{0, 1, 2, 4, 8, 16, 30, 30, 30}));
  const Failure late = failure_at(1e9);
  log.add({.root = &late, .began_s = 100, .failed_s = 1100});
  EXPECT_EQ(log.delay_s(), 0);
}

}  // namespace
}  // namespace lockstep::launch
