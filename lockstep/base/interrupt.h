#pragma once

namespace lockstep {

/// Whether `signal`, so long after `first`, is one of the same request.
bool is_same_request(int first, int signal, double seconds_later);

/// While it lives, SIGINT, SIGTERM and SIGUSR1 (with which schedulers warn)
/// only set a flag. A second SIGINT ends the process as it would without, and
/// so does another SIGTERM or SIGUSR1 after some seconds: a scheduler may send
/// it to the launcher and to us, and the launcher passes it on. Restores the
/// handlers.
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
