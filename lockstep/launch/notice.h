#pragma once

#include <string>

namespace lockstep::launch {

/// Why a node ends its workers, as the other nodes are told.
struct Notice {
  std::string why;
  /// Whether all may start again: a worker failed, and neither an agent nor a
  /// person wanted the end.
  bool may_restart = false;
};

std::string to_text(const Notice& notice);
/// Another agent's. What is none is taken for a reason in plain words.
Notice notice_from_text(const std::string& text);

}  // namespace lockstep::launch
