#pragma once

#include <string>

namespace lockstep::launch {

/// Reason why a node ends its workers, which its agent sends to the other
/// nodes.
struct Notice {
  std::string why;
  /// Whether a restart may follow: a worker failed, and neither a person nor an
  /// agent asked for the end.
  bool may_restart = false;
  /// False if nodes join or leave, which does not count as a restart.
  bool is_fault = true;
  int lost_node = -1;  ///< node that sends no report; -1: none
  /// The exit code of the job. 0 means that it depends on how the workers end.
  /// kExitPreempted means that a node or the network was lost, and that the job
  /// can continue when the same command is run again.
  int exit_code = 0;
};

/// Decision about what follows the end of an attempt.
struct Decision {
  bool restarts = false;
  double delay_s = 0;  ///< time before the next attempt
};

std::string to_text(const Decision& decision);
/// Reads the decision of another agent. If the text is malformed, the job ends.
Decision decision_from_text(const std::string& text);

std::string to_text(const Notice& notice);
/// Reads the notice of another agent. Text that is malformed becomes the `why`
/// of a notice.
Notice notice_from_text(const std::string& text);

}  // namespace lockstep::launch
