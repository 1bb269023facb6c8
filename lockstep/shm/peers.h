#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/shm/p2p_segment.h"
#include "lockstep/shm/peer_process.h"

namespace lockstep::shm {

/// Whether the other ranks of a P2pSegment can still take part. For one
/// thread at a time.
class Peers {
 public:
  Peers(const P2pSegment& segment, int rank);

  /// What the ranks say of themselves; and whether their processes are there.
  void look_at_lines();
  void look_at_processes();

  /// "rank 1 (host build7, pid 4711) ended", "... left the world", "... failed:
  /// the disk is full", as of the last look; nothing if it is there.
  const std::optional<std::string>& end_of(int rank) const;
  /// "rank 1 (host build7, pid 4711) sleeps", "... is stopped": now.
  std::string state_of(int rank) const;

 private:
  std::string name(int rank) const;

  P2pSegment segment_;
  int rank_;
  std::vector<PeerProcess> processes_;  // no pidfd for this process's own
  std::vector<std::optional<std::string>> ends_;
};

}  // namespace lockstep::shm
