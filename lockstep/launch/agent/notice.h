#pragma once

#include <string>

namespace lockstep::launch {

/// Why a node ends its workers, as the other nodes are told.
struct Notice {
  std::string why;
  /// Whether all may start again: a worker failed, and neither an agent nor a
  /// person wanted the end.
  bool may_restart = false;
  /// False: nodes come or go, and no restart is used up.
  bool is_fault = true;
  int lost_node = -1;  ///< that is not to be waited for; -1: none
};

/// What comes after the end of an attempt.
struct Decision {
  bool restarts = false;
  double delay_s = 0;  ///< before it
};

std::string to_text(const Decision& decision);
/// Another agent's. What is none is the job's end.
Decision decision_from_text(const std::string& text);

std::string to_text(const Notice& notice);
/// Another agent's. What is none is taken for a reason in plain words.
Notice notice_from_text(const std::string& text);

}  // namespace lockstep::launch
