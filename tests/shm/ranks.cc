#include "tests/shm/ranks.h"

#include <array>
#include <csignal>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace lockstep::shm {
namespace {

std::string message_of(const std::function<void()>& task) {
  try {
    task();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

std::string InstanceName::operator()(
    const testing::TestParamInfo<Kind>& instance) const {
  return instance.param == Kind::kThreads ? "Threads" : "Processes";
}

std::string InstanceName::operator()(
    const testing::TestParamInfo<std::tuple<Kind, int>>& instance) const {
  const auto [kind, ranks] = instance.param;
  return (*this)({kind, 0}) + std::to_string(ranks);
}

RankProcess::RankProcess(const std::function<void()>& task) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw std::runtime_error("no pipe");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(pipe[0]);
    const std::string message = message_of(task);
    [[maybe_unused]] const ssize_t written =
        ::write(pipe[1], message.data(), message.size());
    ::_exit(message.empty() ? 0 : 1);
  }
  ::close(pipe[1]);
  error_fd_ = pipe[0];
}

RankProcess::~RankProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  ::close(error_fd_);
}

std::string RankProcess::wait() {
  std::string message;
  std::array<char, 512> buffer{};
  for (ssize_t n = 0;
       (n = ::read(error_fd_, buffer.data(), buffer.size())) > 0;) {
    message.append(buffer.data(), static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    return "signal " + std::to_string(WTERMSIG(status));
  }
  return message;
}

std::vector<std::string> run_ranks(Kind kind, int ranks, const RankTask& task,
                                   std::chrono::milliseconds timeout) {
  const auto segment = Group::make_segment(ranks);
  const SegmentAddress address = segment->address();
  const auto as_rank = [&](int rank) {
    Group group(Segment::open(address), rank, ranks, timeout);
    try {
      task(group);
    } catch (const std::exception& error) {
      group.abort(error.what());
      throw;
    }
  };
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  if (kind == Kind::kThreads) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        messages[static_cast<size_t>(rank)] =
            message_of([&] { as_rank(rank); });
      });
    }
    for (auto& thread : threads) thread.join();
    return messages;
  }
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(
        std::make_unique<RankProcess>([&, rank] { as_rank(rank); }));
  }
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    messages[rank] = processes[rank]->wait();
  }
  return messages;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace lockstep::shm
