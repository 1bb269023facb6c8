#include "lockstep/base/process_stat.h"

#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/pipe.h"

namespace lockstep {
namespace {

TEST(ProcessStat, KnowsStateAndParentWhateverTheNameIs) {
  Pipe pipe = make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, "a) Z 1 (b");
    [[maybe_unused]] const auto told = ::write(pipe.write.get(), "x", 1);
    for (;;) ::pause();
  }
  char letter = 0;
  ASSERT_EQ(::read(pipe.read.get(), &letter, 1), 1);
  EXPECT_EQ(parent_of(child), ::getpid());
  EXPECT_NE(process_stat(child)[0], 'Z');
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_stat(child)[0], 'Z');
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_stat(child), "");
  EXPECT_EQ(parent_of(child), -1);
}

}  // namespace
}  // namespace lockstep
