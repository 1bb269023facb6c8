#include "lockstep/tools/comparison/machine_load.h"

#include <ctime>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"
#include "tests/base/busy_process.h"

namespace lockstep::tools {
namespace {

// The output of a kernel 6.1 with 4 cores, in ticks of a hundredth of a second.
constexpr const char* kBefore =
    "cpu  1000 20 300 40000 50 6 7 80 9 0\n"
    "cpu0 100 10 100 10000 10 1 2 20 9 0\n"
    "cpu1 200 10 100 10000 10 1 2 20 0 0\n"
    "cpu2 300 0 50 10000 10 2 2 20 0 0\n"
    "cpu11 400 0 50 10000 20 2 1 20 0 0\n"
    "intr 123 0 0\n";
constexpr const char* kAfter =
    "cpu  9999 20 300 40000 50 6 7 80 9 0\n"
    "cpu0 300 20 150 10740 10 1 2 20 9 0\n"
    "cpu1 600 10 150 10430 10 1 2 140 0 0\n"
    "cpu2 900 0 50 10000 10 2 2 20 0 0\n"
    "cpu11 1400 0 50 10000 20 2 1 20 0 0\n"
    "intr 456 0 0\n";

TEST(CoreTimes, CountWhatTheCoresDidWithoutGuestsTwice) {
  const CoreTimes times = core_times(kBefore, {0, 1}, 100);
  EXPECT_EQ(times.cores, 2);
  EXPECT_DOUBLE_EQ(times.busy_s, 2.13 + 3.13);
  EXPECT_DOUBLE_EQ(times.stolen_s, 0.4);
  EXPECT_EQ(core_times(kBefore, {1}, 100).cores, 1);  // must not match cpu11
}

TEST(CoreTimes, AreNoneWhereTheSystemDoesNotTell) {
  EXPECT_EQ(core_times("", {0, 1}, 100).cores, 0);
  EXPECT_EQ(core_times("cpu0 nothing\ncpu1\n", {0, 1}, 100).cores, 0);
  // Before Linux 2.6.11, there was no steal time.
  EXPECT_EQ(core_times("cpu0 1 2 3 4\n", {0}, 100).stolen_s, 0);
}

TEST(Load, IsWhatOthersDidBetweenTwoReadings) {
  // The cores worked for 2.6 and 4.5 seconds out of ten, and 5 of these were
  // ours.
  const MachineLoad load = load_between(core_times(kBefore, {0, 1}, 100),
                                        core_times(kAfter, {0, 1}, 100), 10, 5);
  EXPECT_NEAR(load.other_s, 2.6 + 4.5 - 5, 1e-9);
  EXPECT_NEAR(load.other_cores(), 0.21, 1e-9);
  EXPECT_NEAR(load.stolen_cores(), 0.12, 1e-9);
  EXPECT_TRUE(load.is_busy());
  const std::string text = busy_text({load});
  EXPECT_EQ(text.find("Other processes used 0.2 of 2 cores, and other virtual "
                      "machines 0.1, while this was measured"),
            0u)
      << text;
}

TEST(Load, IsNoneWorthAWordWhereOnlyWeWorked) {
  // All but 0.1 seconds, which is the work of the kernel and the error of the
  // ticks.
  const MachineLoad quiet = load_between({.cores = 2, .busy_s = 3},
                                         {.cores = 2, .busy_s = 22}, 10, 18.9);
  EXPECT_FALSE(quiet.is_busy());
  EXPECT_EQ(busy_text({quiet, quiet}), "");
  // Our time is counted exactly, but the time of the cores is counted in ticks.
  EXPECT_EQ(load_between({.cores = 2, .busy_s = 3}, {.cores = 2, .busy_s = 22},
                         10, 19.5)
                .other_s,
            0);
}

TEST(Load, NamesTheRoundInWhichItWasMost) {
  const MachineLoad quiet{.cores = 2, .seconds = 10, .other_s = 0.1};
  const MachineLoad busy{.cores = 2, .seconds = 10, .other_s = 18};
  const std::string text = busy_text({quiet, busy, quiet});
  EXPECT_NE(text.find("used 0.6 of 2 cores"), std::string::npos) << text;
  EXPECT_NE(text.find("most in round 2: 1.8"), std::string::npos) << text;
}

TEST(Pressure, IsTheTotalOfSome) {
  EXPECT_DOUBLE_EQ(
      waiting_seconds("some avg10=2.70 avg60=1.76 avg300=0.94 total=9370545\n"
                      "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
          .value(),
      9.370545);
  EXPECT_FALSE(waiting_seconds(""));
  EXPECT_FALSE(waiting_seconds("some avg10=1 total=\n"));
}

// Returns the CPU time of a process in seconds: fields 14 and 15 of its stat.
double cpu_seconds(pid_t pid) {
  std::istringstream fields(process_stat(pid));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(LoadWatch, SeesABusyLoopBesideAndNotOurOwn) {
  const BusyProcess busy;  // not ours: it is reaped only at the end
  const LoadWatch watch;
  const Stopwatch clock;
  const double before_s = cpu_seconds(busy.pid());
  const double own_before_s = own_seconds();
  // By then, both have worked for a second.
  while (cpu_seconds(busy.pid()) - before_s < 1 ||
         own_seconds() - own_before_s < 1) {
    ASSERT_LT(clock.seconds(), 60);
  }
  const auto load = watch.load();
  if (!load) GTEST_SKIP() << "this system has no /proc/stat of its cores";
  EXPECT_GT(load->other_s, 0.8);
  EXPECT_TRUE(load->is_busy());
  // Whatever else runs, our time is not counted as that of others.
  EXPECT_LT(load->other_s,
            load->cores * load->seconds - (own_seconds() - own_before_s) + 0.3);
}

}  // namespace
}  // namespace lockstep::tools
