#pragma once

namespace lockstep {

/// While it lives, SIGINT and SIGTERM only set a flag; a second one ends the
/// process as it would without. Restores the handlers.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  /// The signal that came, or 0.
  static int signal();
};

}  // namespace lockstep
