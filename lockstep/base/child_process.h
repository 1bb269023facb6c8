#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep {

/// The program to start, and with what. Its stdin is /dev/null, and it inherits
/// no other descriptor than its stdout and stderr.
struct ChildOptions {
  std::string program;
  /// A program without a slash is looked up in the PATH of this process.
  bool searches_path = false;
  std::vector<std::string> arguments;    ///< the program's name first
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cores;  ///< to run on; empty: all of this thread's
  int out_fd = -1;         ///< its stdout; negative: that of this process
  int err_fd = -1;         ///< its stderr; negative: that of this process
  /// These signals get their default action. Others are ignored in the program
  /// if this process ignores them. No signal is blocked.
  std::vector<int> default_signals = {SIGINT, SIGTERM, SIGPIPE, SIGHUP,
                                      SIGXFSZ};
  /// The kernel sends it SIGKILL when the thread that started it ends, also if
  /// this process is killed.
  bool dies_with_thread = false;
  /// How long end() waits after SIGTERM before it sends SIGKILL. 0: SIGKILL is
  /// sent at once.
  double grace_s = 0;
};

/// A program can't be started. The message of the errno is in what().
class ProcessStartError : public IoError {
 public:
  ProcessStartError(const std::string& program, int error);
  int error() const { return error_; }  ///< an errno

 private:
  int error_;
};

struct ProcessEnd {
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited
  /// False if this process ignores SIGCHLD: the kernel then reaps a child by
  /// itself, and does not tell how it ended.
  bool is_known = true;
};

/// A child process, the leader of its own process group. The destructor ends
/// the group.
class ChildProcess {
 public:
  /// Returns once the program runs. Throws ProcessStartError, or IoError if
  /// there is no descriptor for it left.
  explicit ChildProcess(const ChildOptions& options);
  ~ChildProcess() { end(); }
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// This descriptor is readable once the process has ended; negative after
  /// poll_end() returned the end.
  int end_fd() const { return pidfd_.get(); }
  /// False after poll_end() returned the end.
  bool is_running() const { return !end_.has_value(); }
  /// How the process ended, or nothing while it runs.
  const std::optional<ProcessEnd>& poll_end();
  /// Sends a signal to the process group, also when its leader has ended.
  void send(int signal) const;
  /// Ends the process group with SIGTERM and, after `grace_s`, with SIGKILL.
  /// What outlived its leader gets SIGKILL at once.
  void end();

 private:
  void note_end(const siginfo_t& info);
  void note_unknown_end();

  pid_t pid_ = -1;
  double grace_s_ = 0;
  FileDescriptor pidfd_;
  std::optional<ProcessEnd> end_;
  bool is_reaped_ = false;
};

}  // namespace lockstep
