// The agents of two nodes, with shell scripts as workers, and a network between
// them that fails.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/run.h"
#include "tests/base/temporary_folder.h"
#include "tests/launch/two_agents.h"
#include "tests/store/forwarder.h"

namespace lockstep::launch::two_nodes_test {
namespace {

constexpr unsigned kTimeoutS = 120;

/// An agent in a process of its own, which ends with this object.
class AgentProcess {
 public:
  AgentProcess(const RunOptions& options, const std::string& script)
      : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(kTimeoutS);
    const std::string path = options.environment.at("LOG") + ".output";
    const int output =
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    try {
      ::_exit(run(options, {"/bin/sh", "-c", script}));
    } catch (const std::exception& error) {
      log_error("test", error.what());
      ::_exit(255);
    }
  }
  ~AgentProcess() {
    if (pid_ > 0) end();
  }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  void end() {
    ::kill(pid_, SIGKILL);
    wait();
  }

  /// Returns the exit code, or the negative number of a signal.
  int wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
};

class TwoNodes : public testing::Test {
 protected:
  // Returns the options of node 0, or of node 1, which reaches the store over
  // the network.
  RunOptions node(int rank, double keep_alive_s) const {
    RunOptions options;
    options.nodes = 2;
    options.node_rank = rank;
    options.master_addr = "127.0.0.1";
    options.master_port = rank == 0 ? port_ : network_.port();
    options.keep_alive_s = keep_alive_s;
    options.join_timeout_s = 60;
    options.pins_cores = false;
    options.environment["LOG"] = log(rank);
    options.environment["END"] = folder_.path("end");
    return options;
  }

  std::string log(int rank) const {
    return folder_.path("log" + std::to_string(rank));
  }
  void let_workers_end() const { std::ofstream(folder_.path("end")) << "now"; }

  void TearDown() override {
    if (!HasFailure()) return;
    for (const int rank : {0, 1}) {
      std::printf("The agents of node %d:\n%s", rank,
                  content_of(log(rank) + ".output").c_str());
    }
  }

  // Waits until the workers of node `rank` have written `text`.
  void wait_for_log(int rank, const std::string& text) const {
    const Stopwatch watch;
    std::string found;
    while (watch.seconds() < 60) {
      std::ifstream file(log(rank));
      found.assign(std::istreambuf_iterator<char>(file), {});
      if (found == text) return;
      ::poll(nullptr, 0, 5);
    }
    FAIL() << "node " << rank << " wrote '" << found << "' and not '" << text
           << "'";
  }

  // Writes the number of workers, and waits to be told to end.
  static constexpr const char* kWorker =
      R"(echo "$WORLD_SIZE" >> "$LOG"
         while [ ! -e "$END" ]; do sleep 0.02; done)";

  const TemporaryFolder folder_;
  const int port_ = parse_endpoint("", free_endpoint(), 0).port;
  store::Forwarder network_{port_};
};

TEST_F(TwoNodes, GoOnAfterTheNetworkResetTheirConnections) {
  AgentProcess first(node(0, 30), kWorker);
  AgentProcess second(node(1, 30), kWorker);
  wait_for_log(0, "2\n");
  wait_for_log(1, "2\n");
  for (int i = 0; i < 5; ++i) {
    network_.reset();
    ::poll(nullptr, 0, 100);  // enough for some of their requests
  }
  let_workers_end();
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

TEST_F(TwoNodes, GoOnWhenTheNetworkWorksAgainInTime) {
  AgentProcess first(node(0, 30), kWorker);
  AgentProcess second(node(1, 30), kWorker);
  wait_for_log(0, "2\n");
  wait_for_log(1, "2\n");
  network_.hold();
  let_workers_end();
  ::poll(nullptr, 0, 3000);  // longer than a client waits for one answer
  network_.release();
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

TEST_F(TwoNodes, SayThatTheJobCanContinueWhenTheNetworkIsLost) {
  AgentProcess first(node(0, 1), kWorker);
  AgentProcess second(node(1, 1), kWorker);
  wait_for_log(0, "2\n");
  wait_for_log(1, "2\n");
  network_.hold();
  EXPECT_EQ(first.wait(), kExitPreempted);
  EXPECT_EQ(second.wait(), kExitPreempted);
}

TEST_F(TwoNodes, EndWhenNode0IsStartedAgain) {
  AgentProcess first(node(0, 30), kWorker);
  AgentProcess former(node(1, 30), kWorker);
  wait_for_log(0, "2\n");
  wait_for_log(1, "2\n");
  first.end();
  AgentProcess again(node(0, 30), kWorker);
  EXPECT_EQ(former.wait(), kExitPreempted);
  AgentProcess present(node(1, 30), kWorker);
  wait_for_log(0, "2\n2\n");
  let_workers_end();
  EXPECT_EQ(again.wait(), 0);
  EXPECT_EQ(present.wait(), 0);
}

TEST_F(TwoNodes, OfAnElasticJobMeetAgainAfterOneWasCutOff) {
  const auto elastic = [&](int rank) {
    RunOptions options = node(rank, 4);
    options.backend = Backend::kC10d;
    options.endpoint = "127.0.0.1:" + std::to_string(options.master_port);
    options.is_host = rank == 0;
    options.node_rank.reset();
    options.min_nodes = 1;
    options.max_restarts = 3;
    return options;
  };
  AgentProcess first(elastic(0), kWorker);
  AgentProcess second(elastic(1), kWorker);
  wait_for_log(0, "2\n");
  wait_for_log(1, "2\n");
  network_.hold();
  wait_for_log(0, "2\n1\n");
  network_.release();
  wait_for_log(0, "2\n1\n2\n");
  wait_for_log(1, "2\n2\n");
  let_workers_end();
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

}  // namespace
}  // namespace lockstep::launch::two_nodes_test
