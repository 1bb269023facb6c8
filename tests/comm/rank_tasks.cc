#include "tests/comm/rank_tasks.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/utils.h>

#include "lockstep/base/env.h"
#include "lockstep/base/file_descriptor.h"
#include "tests/base/fork_server.h"

namespace lockstep {
namespace {

std::map<std::string, RankTask>& tasks() {
  static std::map<std::string, RankTask> all;
  return all;
}

struct ChildRank {
  pid_t pid;
  int output;
};

std::unique_ptr<ForkServer>& server() {
  static std::unique_ptr<ForkServer> the_server;
  return the_server;
}

// Does its task and returns the exit code.
int run_as_rank(const std::vector<std::string>& arguments) {
  try {
    // As torchrun has it, which sets OMP_NUM_THREADS.
    torch::set_num_threads(1);
    ProcessGroupOptions options;
    options.backend(env("LOCKSTEP_TEST_BACKEND").value_or("auto"));
    options.timeout(std::chrono::milliseconds(
        env_integer("LOCKSTEP_TEST_TIMEOUT_MS").value_or(60'000)));
    const ProcessGroup world = init(options);
    try {
      RankTasks::get(arguments.front())(world);
    } catch (const std::exception& error) {
      world.abort(error.what());
      throw;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

ChildRank start(const std::string& task,
                const std::vector<std::string>& environment) {
  Pipe pipe = make_pipe();
  ForkServer::Request request{.arguments = {task},
                              .environment = own_environment(),
                              .err = pipe.write.get()};
  request.environment.insert(request.environment.end(), environment.begin(),
                             environment.end());
  return {server()->fork(request), pipe.read.release()};
}

bool is_stopped(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info,
                  WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

std::string end_of(const ChildRank& child) {
  if (is_stopped(child.pid)) ::kill(child.pid, SIGKILL);
  std::string text;
  std::array<char, 512> buffer{};
  for (ssize_t n = 0;
       (n = ::read(child.output, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(child.output);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (WIFSIGNALED(status)) {
    return "signal " + std::to_string(WTERMSIG(status)) + ": " + text;
  }
  return WEXITSTATUS(status) == 0 ? std::string() : "failed: " + text;
}

}  // namespace

RankTasks::RankTasks(const std::string& name, RankTask task) {
  tasks()[name] = std::move(task);
}

const RankTask& RankTasks::get(const std::string& name) {
  return tasks().at(name);
}

void run_threads(const std::string& name, int ranks,
                 const ProcessGroupOptions& options) {
  spawn(ranks, RankTasks::get(name), options);
}

std::vector<std::string> run_processes(const std::string& name, int ranks,
                                       const ProcessGroupOptions& options) {
  c10d::TCPStoreOptions store_options;
  store_options.port = 0;
  store_options.isServer = true;
  store_options.waitWorkers = false;
  const auto store =
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
  std::vector<ChildRank> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(
        start(name, {
                        "LOCKSTEP_TEST_BACKEND=" + options.backend(),
                        "LOCKSTEP_TEST_TIMEOUT_MS=" +
                            std::to_string(options.timeout().count()),
                        "RANK=" + std::to_string(rank),
                        "LOCAL_RANK=" + std::to_string(rank),
                        "WORLD_SIZE=" + std::to_string(ranks),
                        "LOCAL_WORLD_SIZE=" + std::to_string(ranks),
                        "MASTER_ADDR=127.0.0.1",
                        "MASTER_PORT=" + std::to_string(store->getPort()),
                        "TORCHELASTIC_USE_AGENT_STORE=True",
                        "TORCHELASTIC_RUN_ID=test",
                    }));
  }
  std::vector<std::string> ends;
  for (const auto& child : children) ends.push_back(end_of(child));
  return ends;
}

void start_rank_server() {
  // c10d::TCPStore looks up the names of its peers to log them. A name server
  // that loses a packet must not stop a rank for glibc's default of 5 s.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", /*overwrite=*/0);
  server() = std::make_unique<ForkServer>(run_as_rank);
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace lockstep
