#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// The program to start, and with what.
struct WorkerPlan {
  std::string program;                   ///< a path; PATH is not searched
  std::vector<std::string> arguments;    ///< the program's name first
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cores;  ///< to run on; empty: all of the agent's
  int out_fd = -1;
  int err_fd = -1;
};

struct WorkerEnd {
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited
};

/// A worker process, the leader of its own process group. The kernel sends it
/// SIGKILL when the thread that started it ends, also if this process is
/// killed. The destructor kills what is left of the group.
class WorkerProcess {
 public:
  /// Returns once the program runs. Throws LaunchError if it can't be started.
  explicit WorkerProcess(const WorkerPlan& plan);
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// This descriptor is readable once the worker has ended; negative after
  /// poll_end() returned the end.
  int end_fd() const { return pidfd_.get(); }
  bool is_running() const { return !end_.has_value(); }
  /// How the worker ended, once it has. Only the first call after the end
  /// returns it.
  std::optional<WorkerEnd> poll_end();
  /// Sends a signal to the process group, also when its leader has ended.
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  std::optional<WorkerEnd> end_;
};

}  // namespace lockstep::launch
