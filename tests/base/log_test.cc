#include "lockstep/base/log.h"

#include <cstdlib>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

TEST(Log, WritesComponentAndText) {
  testing::internal::CaptureStderr();
  log_info("data", "reading 5 files");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[data] reading 5 files\n");
}

TEST(Log, LeavesOutWhatIsBelowTheLevel) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  log_debug("a", "debug");
  log_info("a", "info");
  log_warning("a", "warning");
  log_error("a", "error");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[a] warning\n[a] error\n");
  set_log_level(before);
}

TEST(Log, KeepsLinesWholeAcrossThreads) {
  const std::string text(300, 'x');
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) log_info("t", text);
    });
  }
  for (auto& thread : threads) thread.join();
  std::istringstream lines(testing::internal::GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line, "[t] " + text);
  }
  EXPECT_EQ(count, 400);
}

TEST(Log, CanBeCaptured) {
  testing::internal::CaptureStderr();
  {
    const LogCapture capture;
    log_debug("a", "one");
    log_error("b", "two");
    EXPECT_EQ(capture.lines(),
              (std::vector<std::string>{"[a] one", "[b] two"}));
    EXPECT_EQ(capture.text(), "[a] one\n[b] two\n");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(WarnOnce, WarnsOncePerKey) {
  const LogCapture capture;
  warn_once("imbalance", "dp", "first");
  warn_once("imbalance", "dp", "again");
  warn_once("scalars", "dp", "other");
  EXPECT_EQ(capture.text(), "[dp] first\n[dp] other\n");
}

TEST(WarnOnce, WarnsAnewInEachCapture) {
  {
    const LogCapture capture;
    warn_once("key", "dp", "first");
  }
  const LogCapture capture;
  warn_once("key", "dp", "second");
  EXPECT_EQ(capture.text(), "[dp] second\n");
}

// Runs in a separate process, because the variable is read only once.
TEST(LogDeathTest, TakesTheLevelFromTheEnvironment) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::setenv("LOCKSTEP_LOG_LEVEL", "debug", 1);
        log_debug("a", "seen");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "\\[a\\] seen");
}

TEST(LogDeathTest, SaysThatALevelIsUnknown) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::setenv("LOCKSTEP_LOG_LEVEL", "warn", 1);
        log_info("a", "still seen");
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      "LOCKSTEP_LOG_LEVEL is not a level; got 'warn'; .*known are debug.*\n"
      ".*still seen");
}

}  // namespace
}  // namespace lockstep
