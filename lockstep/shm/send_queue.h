#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "lockstep/shm/large_message.h"
#include "lockstep/shm/message_ring.h"
#include "lockstep/shm/p2p_operation.h"

namespace lockstep::shm {

/// The pending sends of a rank to one other rank. Sends wait here, in order,
/// for space in the ring. Sends of large messages then wait until the receiver
/// has taken them. May be called by several threads.
class SendQueue {
 public:
  SendQueue(const RingWriter& ring, SpareSegments& spares)
      : ring_(ring), spares_(&spares) {}

  /// Adds a send. `data` must stay valid until the operation ends.
  void add(P2pOperation send, std::span<const std::byte> data);
  /// Puts messages in the ring while there is space, and moves sends that have
  /// ended to `finished`. Also moves sends for which `failure_of` returns an
  /// error.
  void advance(FinishedOperations& finished,
               const P2pFailureOf& failure_of = {});
  bool is_empty() const;
  /// Stops putting messages in the ring, because no rank reads it any more.
  void close();

 private:
  struct Pending {
    P2pOperation send;
    std::span<const std::byte> data;
    std::unique_ptr<LargeMessage> message;  // set once it is in the ring
    bool is_over = false;
    std::exception_ptr error;
  };
  void put(Pending& pending);
  void move_finished(FinishedOperations& finished);

  mutable std::mutex mutex_;
  RingWriter ring_;
  SpareSegments* spares_;
  std::deque<Pending> pending_;
  bool is_closed_ = false;
};

}  // namespace lockstep::shm
