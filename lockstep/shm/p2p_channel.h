#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>

#include "lockstep/shm/p2p_operation.h"

namespace lockstep::shm {

/// Sends and receives messages between ranks, as c10d does. Messages from one
/// rank to another with the same tag arrive in the order sent. Messages with
/// other tags may be received earlier. Any number of operations of any size can
/// be in progress, so ranks that all send before they receive do not deadlock.
///
/// Operations that can finish at once do so in the caller's thread, so `done`
/// may be called before send() or receive() returns. Other operations are left
/// to a thread of the channel, which calls `done` without holding a lock.
///
/// An operation fails with CommError if its peer ended, left or failed, or if
/// it times out. A receive also fails if its message has another size. After a
/// failed send it is not known whether the message was received.
///
/// Several threads may use a channel. Its destructor tells the other ranks that
/// this rank left, and pending operations fail. It must not be called from
/// `done`.
class P2pChannel {
 public:
  using milliseconds = std::chrono::milliseconds;

  virtual ~P2pChannel() = default;
  P2pChannel(const P2pChannel&) = delete;
  P2pChannel& operator=(const P2pChannel&) = delete;

  /// Send and receive a message. `data` must stay valid until `done` is called.
  /// Throw InvalidArgument if the rank is not one of the other ranks.
  void send(int to, int tag, std::span<const std::byte> data,
            milliseconds timeout, P2pDone done);
  void receive(int from, int tag, std::span<std::byte> data,
               milliseconds timeout, P2pDone done);
  /// Receives the first message with the tag from any rank. Ranks that are gone
  /// make it fail only if all of them are gone.
  void receive_any(int tag, std::span<std::byte> data, milliseconds timeout,
                   P2pDone done);

  /// Makes the operations of other ranks with this rank fail with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  using Clock = P2pOperation::Clock;

  P2pChannel(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  int own_rank() const { return rank_; }
  int ranks() const { return ranks_; }

  virtual void start_send(P2pOperation send,
                          std::span<const std::byte> data) = 0;
  virtual void start_receive(P2pOperation receive,
                             std::span<std::byte> data) = 0;
  /// Returns "rank 1 (host build7, pid 4711) ended". Returns nothing if the
  /// rank can still take part.
  virtual const std::optional<std::string>& end_of(int rank) const = 0;
  /// Returns the state of a rank that can take part: "rank 1 (host build7, pid
  /// 4711) sleeps".
  virtual std::string state_of(int rank) const = 0;

  /// Returns why no message of `peer` can arrive any more: how it ended or, for
  /// kAnySource, how all other ranks ended. Returns "" if one can.
  std::string ends_of(int peer) const;
  /// Returns why an operation can't go on, or null if it can.
  virtual std::exception_ptr failure_of(const P2pOperation& operation) const;

 private:
  std::string whereabouts(int peer) const;

  const int rank_;
  const int ranks_;
};

}  // namespace lockstep::shm
