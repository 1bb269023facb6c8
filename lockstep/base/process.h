#pragma once

#include <functional>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

/// A program to run to its end, in its own process group. It does not outlive
/// the thread that runs it.
struct Command {
  std::vector<std::string> arguments;  ///< first the program, found by PATH
  std::map<std::string, std::string> environment;  ///< added to ours
  double deadline_s = 600;
  /// Called at least ten times a second. The program ends if it returns true.
  std::function<bool()> stop;
  /// Its stderr is that of this process, and is not kept.
  bool shows_err = false;
};

/// The end of a program and its output.
struct CommandResult {
  enum class End { kExited, kSignalled, kDeadline, kStopped };
  End end = End::kExited;
  int exit_code = 0;  ///< kExited
  int signal = 0;     ///< kSignalled
  std::string out;
  std::string err;

  bool ok() const { return end == End::kExited && exit_code == 0; }
};

/// Runs `command` with /dev/null as stdin and waits for its end. At the
/// deadline, when stop() returns true and when an exception is thrown, its
/// whole process group gets SIGTERM, and SIGKILL if it still runs after
/// `kGraceSeconds`. Throws ProcessStartError (an IoError) if it can't be
/// started.
CommandResult run_command(const Command& command);

inline constexpr double kGraceSeconds = 5;

/// Returns "exit code 1", "signal 9 (Killed)" or "not done after 600 s".
std::string describe_end(const CommandResult& result, const Command& command);

/// Returns the environment of this process with `variables` added or replaced,
/// as "NAME=value".
std::vector<std::string> merged_environment(
    const std::map<std::string, std::string>& variables);

/// Returns the path of the running program, which starts itself for ranks and
/// measurements.
std::string own_program();

/// Makes own_program() return `path`. For tests, which call the main function
/// of a program in a process that runs another one.
void set_own_program(std::string path);

/// Returns the fields of /proc/PID/stat (proc(5)) from the third one, the
/// state: "S 4711 ...". The second one, the name, is skipped because a program
/// may choose it freely. Returns "" if there is no such process.
std::string process_stat(pid_t pid);

/// Returns the parent of process `pid`, or -1 if there is no such process.
pid_t parent_of(pid_t pid);

/// Returns a descriptor that becomes readable when process `pid` has ended
/// (pidfd_open(2)). If that fails, it is not open, and errno says why: ENOSYS
/// on Linux before 5.3, and in containers that refuse unknown system calls.
FileDescriptor open_pidfd(pid_t pid);

}  // namespace lockstep
