#pragma once

#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/shm/large_message.h"
#include "lockstep/shm/p2p_operation.h"
#include "lockstep/shm/p2p_segment.h"

namespace lockstep::shm {

/// The pending receives of a rank. Messages stay in their rings until a receive
/// wants one from that rank. Earlier messages with other tags are then set
/// aside, so that tags can be received in any order. May be called by several
/// threads.
class ReceiveQueue {
 public:
  ReceiveQueue(const P2pSegment& segment, int rank);

  /// Adds a receive. `data` must stay valid until the operation ends. It ends
  /// at once if its message was set aside.
  void add(P2pOperation receive, std::span<std::byte> data,
           FinishedOperations& finished);
  /// Delivers the messages that have arrived to the receives that want them, in
  /// order, and moves these receives to `finished`. Also moves receives for
  /// which `failure_of` returns an error.
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
    std::vector<std::byte> data;  // of an inline message
  };

  void read_ring(int source, FinishedOperations& finished);
  bool is_wanted(int source) const;
  void judge(const P2pFailureOf& failure_of, FinishedOperations& finished);
  FinishedOperation deliver(Pending pending, int source,
                            const MessageHead& head) const;
  /// Copies a large message, or refuses it if `out` is empty. Wakes its sender.
  void take(int source, const MessageHead& head,
            std::span<std::byte> out) const;

  P2pSegment segment_;
  mutable OpenedSegments opened_;
  int rank_;
  mutable std::mutex mutex_;
  std::vector<RingReader> rings_;  // by source
  int first_ = 0;                  // the source that is read first
  std::deque<Pending> pending_;
  std::deque<Message> set_aside_;  // messages of a source in the order sent
};

}  // namespace lockstep::shm
