#include "lockstep/base/blocked_sigpipe.h"

#include <array>
#include <cerrno>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

/// A pipe without a reader.
class ClosedPipe {
 public:
  ClosedPipe() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
    ::close(ends_[0]);
  }
  ~ClosedPipe() { ::close(ends_[1]); }
  ClosedPipe(const ClosedPipe&) = delete;
  ClosedPipe& operator=(const ClosedPipe&) = delete;
  /// Returns the errno of a write.
  int write() const { return ::write(ends_[1], "x", 1) < 0 ? errno : 0; }

 private:
  std::array<int, 2> ends_{};
};

TEST(BlockedSigpipe, LetsAWriteToAClosedPipeFail) {
  ASSERT_NE(::signal(SIGPIPE, SIG_DFL), SIG_ERR);
  const ClosedPipe pipe;
  for (int round = 0; round < 2; ++round) {
    const BlockedSigpipe blocked;
    EXPECT_EQ(pipe.write(), EPIPE);
    EXPECT_EQ(pipe.write(), EPIPE);
  }
}

TEST(BlockedSigpipe, HoldsForThreadsStartedMeanwhile) {
  ASSERT_NE(::signal(SIGPIPE, SIG_DFL), SIG_ERR);
  const ClosedPipe pipe;
  std::thread writer;
  {
    const BlockedSigpipe blocked;
    writer = std::thread([&] {
      const BlockedSigpipe nested;
      EXPECT_EQ(pipe.write(), EPIPE);
    });
  }
  writer.join();
}

TEST(BlockedSigpipeDeathTest, LeavesTheSignalAsItWasAfterwards) {
  const ClosedPipe pipe;
  EXPECT_EXIT(
      {
        ::signal(SIGPIPE, SIG_DFL);
        { const BlockedSigpipe blocked; }
        pipe.write();
        ::_exit(0);
      },
      testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace lockstep
