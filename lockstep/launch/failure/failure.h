#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::launch {

/// Description of how and why a worker ended with an exit code other than 0.
struct Failure {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string host;
  int pid = 0;
  int exit_code = 0;
  int signal = 0;        ///< 0: it exited
  double time_s = 0;     ///< since 1970
  bool is_cause = true;  ///< false: the agent had told it to end
  /// The worker reported that it ended because another rank failed. It is the
  /// root cause only if no other failure explains the end.
  bool is_consequence = false;
  std::string message;  ///< from its error file
  std::string callstack;
  std::vector<std::string> last_lines;  ///< from its stderr
  std::string log_folder;               ///< empty: logs are not kept

  /// Returns true if something outside the job probably killed the worker: a
  /// person, a scheduler, or the kernel when memory ran out.
  bool is_from_outside() const;
  std::string how_it_ended() const;  ///< "exit code 3", "SIGKILL (Killed)"
  /// Returns the exit code as torchrun writes it, which is negative for a
  /// signal.
  int torchrun_exit_code() const { return signal != 0 ? -signal : exit_code; }
};

nlohmann::json to_json(const std::vector<Failure>& failures);
/// Reads the failures of another agent. Malformed entries are left out.
std::vector<Failure> failures_from_json(const std::string& text);

/// Turns late errors into causes. If every rank that failed before the end of
/// the attempt did so because of another rank, that other rank may have
/// reported its error only after the agent began to end the workers.
void admit_late_causes(std::vector<Failure>& failures);

/// Returns the earliest failure that is a cause and not a consequence. If all
/// are consequences, returns the earliest of all. Returns null if there are no
/// failures. (A rank that runs out of memory needs longer to report that than
/// another rank needs to notice that it is gone.)
const Failure* root_cause(const std::vector<Failure>& failures);

/// Returns the exit code of a job with these failures: kExitTrainingFailed or
/// kExitBadUsage if its root cause ended with that code, else kExitFailed. The
/// agent may end a rank with a signal after it reported its error and before it
/// exits. The exit codes of the other ranks that failed then decide.
int exit_code_of(const std::vector<Failure>& failures);

/// Returns the report at the end of a failed job's output: the other failures,
/// one per line, then the root cause. Ends with a newline.
std::string failure_report(const std::vector<Failure>& failures);

}  // namespace lockstep::launch
