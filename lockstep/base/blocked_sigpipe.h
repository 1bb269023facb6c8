#pragma once

#include <csignal>

namespace lockstep {

/// While it lives, a write to a connection that the peer has closed fails with
/// EPIPE instead of ending the process by SIGPIPE. That holds for this thread,
/// and for good for the threads that it starts meanwhile, as those inherit the
/// mask. For libraries that write to sockets without MSG_NOSIGNAL; the
/// program's own handling of SIGPIPE elsewhere stays as it is.
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
