#pragma once

#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/file_descriptor.h"

// A spare worker is a process of the user's program that the agent has started
// and that waits before main(), when its libraries are loaded. It never becomes
// a rank itself. Whenever the agent needs a process for a rank, the spare
// worker forks one, which goes on to main() as if it had just been started, and
// is a child of the agent. That takes milliseconds, while loading LibTorch
// takes most of a second.
//
// The spare worker's stdin is a socket, on which it announces itself and gets
// one message for each process.
namespace lockstep::control {

/// The environment variable that makes a process wait as a spare worker. Its
/// value is the process id of the agent.
inline constexpr const char* kSpareVariable = "LOCKSTEP_SPARE";

/// The two ends of a connection that keeps messages separate and has no name.
struct SocketPair {
  FileDescriptor agent;
  FileDescriptor worker;
};

/// Creates such a connection. Throws IoError.
SocketPair make_socket_pair();

/// The surroundings of a process that becomes a rank.
struct RankSetup {
  std::map<std::string, std::string> variables;  ///< added to its environment
  std::vector<int> cores;  ///< to run on; empty: those of the spare worker
  int out_fd = -1;         ///< its stdout
  int err_fd = -1;         ///< its stderr
};

/// A process that a spare worker has forked. It ends, unless go() is called.
class ForkedRank {
 public:
  ForkedRank(pid_t pid, FileDescriptor gate)
      : pid_(pid), gate_(std::move(gate)) {}
  pid_t pid() const { return pid_; }
  /// Lets the process go on to main().
  void go();

 private:
  pid_t pid_;
  FileDescriptor gate_;
};

/// Returns whether the spare worker at the other end of `socket` has announced
/// itself. Call it until it returns true.
bool is_spare_ready(const FileDescriptor& socket);

/// Makes the spare worker fork a process for a rank. Returns nothing if it
/// doesn't within a few seconds, because it has ended or was stopped. The
/// caller must be a subreaper (prctl(2)), so that the process becomes its
/// child.
std::optional<ForkedRank> fork_rank(const FileDescriptor& socket,
                                    const RankSetup& setup);

/// Waits as a spare worker if the agent started this process as one. Returns
/// only in processes that are to run main(). Called before main(), when there
/// are no other threads.
void wait_as_spare();

}  // namespace lockstep::control
