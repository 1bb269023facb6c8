#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::launch {

/// How and why a worker ended with another exit code than 0.
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
  /// It reported that it ended because another rank failed. It is then the root
  /// cause only if no other failure explains the end.
  bool is_consequence = false;
  std::string message;  ///< from its error file
  std::string callstack;
  std::vector<std::string> last_lines;  ///< from its stderr
  std::string log_folder;               ///< empty: logs are not kept

  /// Whether something outside of the job killed it, as far as can be seen: a
  /// person, a scheduler, or the kernel when memory was short.
  bool is_from_outside() const;
  std::string how_it_ended() const;  ///< "exit code 3", "SIGKILL (Killed)"
  /// The exit code as torchrun writes it: a signal is negative.
  int torchrun_exit_code() const { return signal != 0 ? -signal : exit_code; }
};

nlohmann::json to_json(const std::vector<Failure>& failures);
/// Reads the failures of another agent. Entries that are malformed are left
/// out.
std::vector<Failure> failures_from_json(const std::string& text);

/// If every rank that failed before the end of the attempt did so because of
/// another rank, that other rank may have reported its error only after the
/// agent began to end the workers. Such a late error becomes a cause.
void admit_late_causes(std::vector<Failure>& failures);

/// The earliest failure that is a cause and not a consequence. If all are
/// consequences, the earliest of all; null without failures. (A rank that runs
/// out of memory needs longer to report that than another rank needs to notice
/// its absence.)
const Failure* root_cause(const std::vector<Failure>& failures);

/// Returns the exit code of a job with these failures: kExitTrainingFailed or
/// kExitBadUsage if its root cause ended with that, else kExitFailed. A rank
/// that reported its error may be ended by a signal of the agent before it
/// exits; the ranks that failed with it then tell the code.
int exit_code_of(const std::vector<Failure>& failures);

/// The report that ends the output of a failed job: the other failures, a line
/// each, then the root cause. Ends with a newline.
std::string failure_report(const std::vector<Failure>& failures);

}  // namespace lockstep::launch
