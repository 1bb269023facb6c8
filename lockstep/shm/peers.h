#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/shm/p2p_segment.h"
#include "lockstep/shm/peer_process.h"

namespace lockstep::shm {

/// Watches whether the other ranks of a P2pSegment can still take part. One
/// thread may use it at a time.
class Peers {
 public:
  Peers(const P2pSegment& segment, int rank);

  /// Read what the ranks report, and check whether their processes run.
  void look_at_lines();
  void look_at_processes();

  /// Returns "rank 1 (host build7, pid 4711) ended", "... left the world" or
  /// "... failed: the disk is full", as of the last look. Returns nothing if
  /// the rank can still take part.
  const std::optional<std::string>& end_of(int rank) const;
  /// Returns the current state: "rank 1 (host build7, pid 4711) sleeps", "...
  /// is stopped".
  std::string state_of(int rank) const;

 private:
  std::string name(int rank) const;

  P2pSegment segment_;
  int rank_;
  std::vector<PeerProcess> processes_;  // no pidfd for ranks of this process
  std::vector<std::optional<std::string>> ends_;
};

}  // namespace lockstep::shm
