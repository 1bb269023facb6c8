#pragma once

#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/shm/opened_segments.h"
#include "lockstep/shm/p2p_operation.h"
#include "lockstep/shm/p2p_segment.h"

namespace lockstep::shm {

/// What a rank receives. Messages stay in their rings until a receive wants
/// one of that rank; those before it with other tags are then set aside, so
/// that tags can be received in any order. May be called by several threads.
class ReceiveQueue {
 public:
  ReceiveQueue(const P2pSegment& segment, int rank);

  /// `data` must stay until the operation is over. If its message was set
  /// aside, it is over at once.
  void add(P2pOperation receive, std::span<std::byte> data,
           FinishedOperations& finished);
  /// Gives what has come to the receives that want it, in their order, and
  /// moves those to `finished`; with a failure_of, those too that it is
  /// against.
  void advance(FinishedOperations& finished,
               const P2pFailureOf& failure_of = {});
  bool is_empty() const;

 private:
  struct Pending {
    P2pOperation receive;
    std::span<std::byte> data;
  };
  struct Message {
    int source;
    MessageHead head;
    std::vector<std::byte> data;  // of an inline one
  };

  void read_ring(int source, FinishedOperations& finished);
  bool is_wanted(int source) const;
  void judge(const P2pFailureOf& failure_of, FinishedOperations& finished);
  FinishedOperation deliver(Pending pending, int source,
                            const MessageHead& head) const;
  /// Copies a large message; an empty `out` refuses it. Tells its sender.
  void take(int source, const MessageHead& head,
            std::span<std::byte> out) const;

  P2pSegment segment_;
  mutable OpenedSegments opened_;
  int rank_;
  mutable std::mutex mutex_;
  std::vector<RingReader> rings_;  // by source
  int first_ = 0;                  // the source that is looked at first
  std::deque<Pending> pending_;
  std::deque<Message> set_aside_;  // those of a source in the order sent
};

}  // namespace lockstep::shm
