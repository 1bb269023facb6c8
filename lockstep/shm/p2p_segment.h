#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/shm/futex.h"
#include "lockstep/shm/message_ring.h"
#include "lockstep/shm/peer_process.h"
#include "lockstep/shm/segment.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep::shm {

/// The state that a rank shares with the others, in zeroed shared memory.
struct P2pRankState {
  enum class State : uint32_t { kAbsent, kJoining, kHere, kLeft, kFailed };

  alignas(64) EventCount events;
  std::atomic<State> state;
  // Written before state becomes kHere.
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> start_time;
  transport::FailureText failure;  ///< written before state becomes kFailed
};

/// The memory that the point-to-point channels of a world share: a line for
/// each rank and a ring for each ordered pair of ranks. Pages take memory only
/// when they are used.
class P2pSegment {
 public:
  /// Creates the segment for `ranks` ranks. Rank 0 calls this. Throws
  /// CommError.
  static std::shared_ptr<const Segment> make(int ranks);
  /// Throws CommError if `segment` is not such a segment for `ranks` ranks.
  P2pSegment(std::shared_ptr<const Segment> segment, int ranks);

  int ranks() const { return ranks_; }
  P2pRankState& line(int rank) const;
  MessageRing& ring(int from, int to) const;
  /// Returns "host build7, pid 4711" or "not here yet".
  std::string process_name(int rank) const;

 private:
  std::shared_ptr<const Segment> segment_;
  int ranks_;
};

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
