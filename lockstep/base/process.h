#pragma once

#include <functional>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace lockstep {

/// A program to run to its end, in a process group of its own.
struct Command {
  std::vector<std::string> arguments;  ///< the first: the program, by PATH
  std::map<std::string, std::string> environment;  ///< added to ours
  double deadline_s = 600;
  /// Polled at least ten times a second; true ends the program.
  std::function<bool()> stop;
};

/// How a program ended, and what it wrote.
struct CommandResult {
  enum class End { kExited, kSignalled, kDeadline, kStopped };
  End end = End::kExited;
  int exit_code = 0;  ///< kExited
  int signal = 0;     ///< kSignalled
  std::string out;
  std::string err;

  bool ok() const { return end == End::kExited && exit_code == 0; }
};

/// Runs `command` with stdin closed and waits for its end. On the deadline, on
/// stop() and when an exception passes, its whole process group gets SIGTERM,
/// and SIGKILL if it is not gone after `kGraceSeconds`. Throws
/// ProcessStartError (an IoError) if it can't be started.
CommandResult run_command(const Command& command);

inline constexpr double kGraceSeconds = 5;

/// "exit code 1", "signal 9 (Killed)", "not done after 600 s".
std::string describe_end(const CommandResult& result, const Command& command);

/// The environment of this process with `variables` added or replaced, as
/// "NAME=value".
std::vector<std::string> merged_environment(
    const std::map<std::string, std::string>& variables);

/// The path of the running program.
std::string own_program();

/// The fields of /proc/PID/stat (proc(5)) from the third one on, which is the
/// state: "S 4711 ...". The second one, the name, is left out, because a
/// program may choose it freely. "" if there is no such process.
std::string process_stat(pid_t pid);

/// The process whose child `pid` is; -1 if there is no such process.
pid_t parent_of(pid_t pid);

}  // namespace lockstep
