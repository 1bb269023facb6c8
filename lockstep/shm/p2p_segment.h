#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/shm/event_count.h"
#include "lockstep/shm/fixed_text.h"
#include "lockstep/shm/message_ring.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// What a rank tells the others about itself. Lies in zeroed shared memory.
struct P2pRankState {
  enum class State : uint32_t { kAbsent, kJoining, kHere, kLeft, kFailed };

  alignas(64) EventCount events;
  std::atomic<State> state;
  // Written before state is kHere.
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> start_time;
  FailureText failure;  ///< written before state is kFailed
};

/// The memory that the point-to-point channels of a world share: a line for
/// each rank, a ring for each ordered pair. Only what is used takes memory.
class P2pSegment {
 public:
  /// Of rank 0, for `ranks` ranks. Throws CommError.
  static std::shared_ptr<const Segment> make(int ranks);
  /// Throws CommError if it is no such segment.
  P2pSegment(std::shared_ptr<const Segment> segment, int ranks);

  int ranks() const { return ranks_; }
  P2pRankState& line(int rank) const;
  MessageRing& ring(int from, int to) const;
  /// "host build7, pid 4711"; "not here yet".
  std::string process_name(int rank) const;

 private:
  std::shared_ptr<const Segment> segment_;
  int ranks_;
};

}  // namespace lockstep::shm
