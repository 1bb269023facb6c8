#pragma once

#include <csignal>

namespace lockstep {

/// Blocks SIGPIPE in this thread for as long as the object exists. A write to a
/// connection that the peer has closed then fails with EPIPE instead of ending
/// the process. Threads that are started meanwhile inherit the mask and keep
/// it. For libraries that write to sockets without MSG_NOSIGNAL. The program's
/// own handling of SIGPIPE does not change.
class BlockedSigpipe {
 public:
  BlockedSigpipe();
  ~BlockedSigpipe();
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  BlockedSigpipe& operator=(const BlockedSigpipe&) = delete;

 private:
  sigset_t former_{};
  bool was_pending_ = false;
};

}  // namespace lockstep
