#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "lockstep/shm/large_message.h"
#include "lockstep/shm/message_ring.h"
#include "lockstep/shm/p2p_operation.h"

namespace lockstep::shm {

/// What a rank sends to one other: sends wait here, in order, for space in the
/// ring; those of large messages then until the receiver has taken them.
/// May be called by several threads.
class SendQueue {
 public:
  SendQueue(const RingWriter& ring, SpareSegments& spares)
      : ring_(ring), spares_(&spares) {}

  /// `data` must stay until the operation is over.
  void add(P2pOperation send, std::span<const std::byte> data);
  /// Puts what there is space for, and moves to `finished` what is over; with
  /// a failure_of, those too that it is against.
  void advance(FinishedOperations& finished,
               const P2pFailureOf& failure_of = {});
  bool is_empty() const;
  /// Puts nothing more: there is no one to read it.
  void close();

 private:
  struct Pending {
    P2pOperation send;
    std::span<const std::byte> data;
    std::unique_ptr<LargeMessage> message;  // set: put in the ring
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
