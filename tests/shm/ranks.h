#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <sys/types.h>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/shm/group.h"

namespace lockstep::shm {

enum class Kind { kThreads, kProcesses };

/// Names instances of tests: "Threads", or "Threads4" for two parameters, of
/// which the second is the number of ranks.
struct InstanceName {
  std::string operator()(const testing::TestParamInfo<Kind>& instance) const;
  std::string operator()(
      const testing::TestParamInfo<std::tuple<Kind, int>>& instance) const;
};

using RankTask = std::function<void(Group&)>;

/// Runs `task` as every rank of a group. Returns "" for a rank that succeeded,
/// and the error of a rank that threw. A task reports failures by throwing,
/// because gtest's expectations are lost in another process.
std::vector<std::string> run_ranks(
    Kind kind, int ranks, const RankTask& task,
    std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// A rank in a separate process, which is killed if it is still running at the
/// end.
class RankProcess {
 public:
  explicit RankProcess(const std::function<void()>& task);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  pid_t pid() const { return pid_; }
  /// Waits for the rank's end. Returns the error that it threw, or "signal 9"
  /// if it was killed.
  std::string wait();

 private:
  pid_t pid_ = -1;
  int error_fd_ = -1;
};

/// Throws std::runtime_error with `what` unless `condition` is true.
void require(bool condition, const std::string& what);

}  // namespace lockstep::shm
