#pragma once

#include <string>

namespace lockstep::launch {

/// Why a node ends its workers: what its agent tells the other nodes.
struct Notice {
  std::string why;
  /// Whether a restart may follow: a worker failed, and the end was not asked
  /// for by a person or an agent.
  bool may_restart = false;
  /// False: nodes join or leave, which costs no restart.
  bool is_fault = true;
  int lost_node = -1;  ///< whose report nobody waits for; -1: none
  /// The exit code of the job. 0: it depends on how the workers end.
  int exit_code = 0;
};

/// What comes after the end of an attempt.
struct Decision {
  bool restarts = false;
  double delay_s = 0;  ///< before the next attempt
};

std::string to_text(const Decision& decision);
/// Reads the decision of another agent. If the text is malformed, the job ends.
Decision decision_from_text(const std::string& text);

std::string to_text(const Notice& notice);
/// Reads the notice of another agent. Text that is malformed becomes the `why`
/// of a notice.
Notice notice_from_text(const std::string& text);

}  // namespace lockstep::launch
