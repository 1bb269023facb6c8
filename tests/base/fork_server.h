#pragma once

#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace lockstep {

/// A process that forks others. It has loaded LibTorch, so what it forks starts
/// in a millisecond instead of half a second.
class ForkServer {
 public:
  /// Runs in a forked process and returns its exit code.
  using Main = std::function<int(const std::vector<std::string>& arguments)>;

  /// Input of a forked process, which has the current folder of the caller.
  struct Request {
    std::vector<std::string> arguments;
    std::vector<std::string> environment;  // "NAME=value", all of it
    int out = 1;                           // becomes its stdout
    int err = 2;                           // becomes its stderr
  };

  /// Forks the server. Only a process with one thread can be forked safely, so
  /// main() makes the server before anything else. Throws std::runtime_error if
  /// a library has started threads.
  explicit ForkServer(Main main);
  /// Ends the server. The processes that it forked go on.
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// Returns the process id of a new child of this process. Libraries that read
  /// variables when they are loaded, such as OMP_NUM_THREADS, have read those
  /// of this process. Throws std::runtime_error.
  pid_t fork(const Request& request) const;

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

/// Returns the environment of this process as "NAME=value".
std::vector<std::string> own_environment();

}  // namespace lockstep
