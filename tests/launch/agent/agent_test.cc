// The agent, with shell scripts as workers.
#include "lockstep/launch/agent/agent.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/launch/run.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch::agent_test {
namespace {

// An agent that takes longer is ended, and its workers end with it.
constexpr unsigned kTimeoutS = 60;

/// Runs `script` as the only worker of an agent, and returns the agent's exit
/// code, or the negative number of the signal that ended it. The agent has its
/// own process, because it handles the signals of its process.
int run_agent(const RunOptions& options, const std::string& script) {
  const pid_t agent = ::fork();
  if (agent == 0) {
    ::alarm(kTimeoutS);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    try {
      ::_exit(run(options, {"/bin/sh", "-c", script}));
    } catch (const std::exception&) {
      ::_exit(255);
    }
  }
  int status = 0;
  EXPECT_EQ(::waitpid(agent, &status, 0), agent);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Agent, StartsAWorkerAgainAsOftenAsItMayAndThenFails) {
  const TemporaryFolder folder;
  RunOptions options;
  options.max_restarts = 1;
  options.environment["STARTS"] = folder.path("starts");
  EXPECT_EQ(run_agent(options, R"(echo >> "$STARTS"; exit 3)"), kExitFailed);
  const std::string starts = content_of(folder.path("starts"));
  EXPECT_EQ(std::count(starts.begin(), starts.end(), '\n'), 2);
}

TEST(Agent, PassesItsSignalOnAndEndsWithTheCodeThatNamesIt) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("never").c_str(), 0600), 0);
  RunOptions options;
  options.max_restarts = 1;
  options.environment["NEVER"] = folder.path("never");
  options.environment["GOT"] = folder.path("got");
  EXPECT_EQ(run_agent(options, R"(trap 'echo INT > "$GOT"; exit 0' INT
                                     kill -INT $PPID
                                     read -r line < "$NEVER")"),
            kExitSignal + SIGINT);
  EXPECT_EQ(content_of(folder.path("got")), "INT\n");
}

TEST(Agent, EndsWellIfItsWorkerDoes) {
  EXPECT_EQ(run_agent({}, "exit 0"), kExitDone);
}

}  // namespace
}  // namespace lockstep::launch::agent_test
