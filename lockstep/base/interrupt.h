#pragma once

namespace lockstep {

/// Returns whether `signal`, received `seconds_later` after `first`, belongs to
/// the same request.
bool is_same_request(int first, int signal, double seconds_later);

/// Handles SIGINT, SIGTERM, SIGUSR1 (the warning of schedulers) and SIGHUP (a
/// closed terminal) by setting a flag, for as long as the object exists. SIGHUP
/// stays ignored if it was ignored before (nohup). A second SIGINT has its
/// former effect, and so does another of the other signals after some seconds.
/// Within these seconds it counts as the same request: a scheduler may signal
/// both the launcher and this process, and the launcher passes the signal on.
/// The destructor restores the handlers.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  /// Returns the last signal received, or 0.
  static int signal();
};

}  // namespace lockstep
