#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// What to start.
struct WorkerPlan {
  std::string program;                   ///< a file, not searched for
  std::vector<std::string> arguments;    ///< the program's name first
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cores;                ///< to run on; empty: ours
  int out_fd = -1;
  int err_fd = -1;
};

struct WorkerEnd {
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited
};

/// A worker, leader of a process group of its own. Gets SIGKILL when the
/// thread that started it ends, this process being killed included; with this
/// object, what is left of the group does.
class WorkerProcess {
 public:
  /// Returns once the program runs. Throws LaunchError if it can't.
  explicit WorkerProcess(const WorkerPlan& plan);
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable once the worker has ended; negative once that was noticed.
  int end_fd() const { return pidfd_.get(); }
  bool is_running() const { return !end_.has_value(); }
  /// Notices its end, if it came. Returns it only the first time.
  std::optional<WorkerEnd> poll_end();
  /// To the group, also when its leader is gone.
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  std::optional<WorkerEnd> end_;
};

}  // namespace lockstep::launch
