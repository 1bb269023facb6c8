#include "lockstep/base/interrupt.h"

#include <csignal>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(InterruptScope, KeepsTheSignalRatherThanEndingTheProcess) {
  const InterruptScope scope;
  EXPECT_EQ(InterruptScope::signal(), 0);
  ::raise(SIGINT);
  EXPECT_EQ(InterruptScope::signal(), SIGINT);
}

TEST(InterruptScope, TakesSigtermToo) {
  const InterruptScope scope;
  ::raise(SIGTERM);
  EXPECT_EQ(InterruptScope::signal(), SIGTERM);
}

TEST(InterruptScope, TakesAClosedTerminalUnlessThatIsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_DFL);
  {
    const InterruptScope scope;
    ::raise(SIGHUP);
    EXPECT_EQ(InterruptScope::signal(), SIGHUP);
  }
  std::signal(SIGHUP, SIG_IGN);  // nohup
  {
    const InterruptScope scope;
    ::raise(SIGHUP);
    EXPECT_EQ(InterruptScope::signal(), 0);
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

TEST(InterruptScope, StartsAnewEachTime) {
  {
    const InterruptScope scope;
    ::raise(SIGINT);
  }
  const InterruptScope scope;
  EXPECT_EQ(InterruptScope::signal(), 0);
}

int calls = 0;

TEST(InterruptScope, RestoresTheHandlers) {
  calls = 0;
  const auto before = std::signal(SIGINT, [](int) { ++calls; });
  {
    const InterruptScope outer;
    { const InterruptScope inner; }
    ::raise(SIGINT);
    EXPECT_EQ(calls, 0) << "the inner scope's end must not end the outer one";
  }
  ::raise(SIGINT);
  EXPECT_EQ(calls, 1);
  std::signal(SIGINT, before);
}

TEST(InterruptScope, HandsTheSecondSignalToTheFormerHandler) {
  calls = 0;
  const auto before = std::signal(SIGINT, [](int) { ++calls; });
  {
    const InterruptScope scope;
    ::raise(SIGINT);
    ::raise(SIGINT);
  }
  std::signal(SIGINT, before);
  EXPECT_EQ(calls, 1);
}

// The signal comes from the scheduler and from the launcher, which also
// received it.
TEST(InterruptScope, TakesASchedulersSignalTwiceAtOnceForOne) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    calls = 0;
    const auto before = std::signal(signal, [](int) { ++calls; });
    {
      const InterruptScope scope;
      ::raise(signal);
      ::raise(signal);
      EXPECT_EQ(InterruptScope::signal(), signal);
    }
    std::signal(signal, before);
    EXPECT_EQ(calls, 0);
  }
}

TEST(InterruptScope, TakesSigtermAfterAWarningForTheSameRequest) {
  const InterruptScope scope;
  ::raise(SIGUSR1);
  ::raise(SIGTERM);
  EXPECT_EQ(InterruptScope::signal(), SIGTERM);
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptDeathTest, TheSecondSignalEndsABackgroundJobToo) {
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_IGN);
        const InterruptScope scope;
        ::raise(SIGINT);
        if (InterruptScope::signal() == SIGINT) ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace lockstep
