#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep {

/// A program to start, and its arguments and surroundings. It inherits no
/// descriptors except its stdin, stdout and stderr.
struct ChildOptions {
  std::string program;
  /// Whether a program without a slash is looked up in this process's PATH.
  bool searches_path = false;
  std::vector<std::string> arguments;    ///< the program's name first
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cores;  ///< to run on; empty: those of this thread
  int in_fd = -1;          ///< its stdin; negative: /dev/null
  int out_fd = -1;         ///< its stdout; negative: that of this process
  int err_fd = -1;         ///< its stderr; negative: that of this process
  /// Signals that get their default action. Other signals are ignored in the
  /// program if this process ignores them. No signal is blocked.
  std::vector<int> default_signals = {SIGINT, SIGTERM, SIGPIPE, SIGHUP,
                                      SIGXFSZ};
  /// Whether the kernel sends the program SIGKILL when the thread that started
  /// it ends, even if this process is killed.
  bool dies_with_thread = false;
  /// Time that end() waits between SIGTERM and SIGKILL. 0 means: send SIGKILL
  /// at once.
  double grace_s = 0;
};

/// A program that can't be started. what() includes the message of the errno.
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
  /// False if this process ignores SIGCHLD. The kernel then reaps the child
  /// itself and does not report how it ended.
  bool is_known = true;
};

/// A child process, the leader of its own process group. The destructor ends
/// the group.
class ChildProcess {
 public:
  /// Starts the program and returns once it runs. Throws ProcessStartError, or
  /// IoError if no descriptor is left for it.
  explicit ChildProcess(const ChildOptions& options);
  ~ChildProcess() { end(); }
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// Returns a descriptor that becomes readable when the process has ended.
  /// Negative once poll_end() has returned the end.
  int end_fd() const { return end_fd_.get(); }
  /// Returns false once poll_end() has returned the end.
  bool is_running() const { return !end_.has_value(); }
  /// Returns how the process ended, or nothing while it runs.
  const std::optional<ProcessEnd>& poll_end();
  /// Sends a signal to the process group, even if its leader has ended.
  void send(int signal) const;
  /// Ends the process group with SIGTERM and, after `grace_s`, with SIGKILL.
  /// Processes that outlived the leader get SIGKILL at once.
  void end();

 private:
  // Opens end_fd_, or ends the process and throws IoError.
  void watch(const std::string& name);
  void note_end(const siginfo_t& info);
  void note_unknown_end();

  pid_t pid_ = -1;
  double grace_s_ = 0;
  FileDescriptor end_fd_;
  std::optional<ProcessEnd> end_;
  bool is_reaped_ = false;
};

}  // namespace lockstep
