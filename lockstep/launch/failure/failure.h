#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::launch {

/// How and why a worker ended other than with exit code 0.
struct Failure {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string host;
  int pid = 0;
  int exit_code = 0;
  int signal = 0;        ///< 0: it exited
  double time_s = 0;     ///< since 1970
  bool is_cause = true;  ///< false: it ended after the agent had told it to
  /// It ended because another rank failed, or so it said: no cause if there is
  /// one.
  bool is_consequence = false;
  std::string message;  ///< of its error file
  std::string callstack;
  std::vector<std::string> last_lines;  ///< of its stderr
  std::string log_folder;               ///< empty: nothing is kept

  /// Whether somebody else ended it, as far as can be seen: a person, a
  /// scheduler, or the kernel when memory was short.
  bool is_from_outside() const;
  std::string how_it_ended() const;  ///< "exit code 3", "SIGKILL (Killed)"
  /// As torchrun has it: minus the signal, if it was one.
  int torchrun_exit_code() const { return signal != 0 ? -signal : exit_code; }
};

nlohmann::json to_json(const std::vector<Failure>& failures);
/// Another agent's; what is no failure is left out.
std::vector<Failure> failures_from_json(const std::string& text);

/// Where all that failed before the end did so because of another rank, that
/// one may have needed until after it to say why: makes it a cause.
void admit_late_causes(std::vector<Failure>& failures);

/// The earliest failure that is a cause and not a consequence. If all are
/// consequences: the earliest of all. Without failures: null. (A rank that runs
/// out of memory needs longer to say so than another rank that misses it.)
const Failure* root_cause(const std::vector<Failure>& failures);

}  // namespace lockstep::launch
