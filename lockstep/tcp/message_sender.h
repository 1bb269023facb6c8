#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <span>
#include <vector>

#include "lockstep/shm/p2p_operation.h"
#include "lockstep/tcp/connection.h"
#include "lockstep/tcp/message_frame.h"

namespace lockstep::tcp {

/// Sends this rank's messages and other frames to one peer. One thread may use
/// it at a time. Functions that get what the peer sent throw CommError if that
/// is not possible.
class MessageSender {
 public:
  using Time = shm::P2pOperation::Clock::time_point;

  /// Operations that end are added to `finished`.
  MessageSender(Connection& connection, shm::FinishedOperations& finished)
      : connection_(&connection), finished_(&finished) {}

  /// Sends a message. A small one ends at once: it is copied.
  void send(shm::P2pOperation send, std::span<const std::byte> data);
  /// Queues a frame behind those that were queued before.
  void queue(const Frame& frame, std::span<const std::byte> payload = {});
  /// Queues the last frame. Later frames are ignored.
  void queue_last(const Frame& frame, std::span<const std::byte> payload = {});
  /// Sends as much as the socket takes at once. Returns whether it took
  /// anything.
  bool advance();
  /// Return whether something waits for the socket, and whether this includes
  /// frames that it was not offered yet.
  bool has_unsent() const;
  bool has_queued() const { return !queued_.empty(); }
  /// Drops what was not sent, and ignores later frames.
  void close();

  // Answers from the peer.
  /// The send of a message that is refused or empty ends without data.
  void on_answer(uint64_t id, bool is_accepted);
  void on_drop(uint64_t id, const shm::P2pFailureOf& failure_of);
  void on_credit(uint64_t bytes);

  /// Ends the sends for which `failure_of` returns an error. Returns the
  /// earliest deadline of the others.
  Time fail(const shm::P2pFailureOf& failure_of);

 private:
  struct Outgoing {
    shm::P2pOperation send;
    std::span<const std::byte> rest;
    uint64_t id;
  };
  using Flowing = std::deque<Outgoing>;

  void finish(shm::P2pOperation& send, std::exception_ptr error = nullptr);
  void refill();
  void check_known(uint64_t id) const;
  /// Ends the send and tells the peer that no more data will come.
  Flowing::iterator withdraw(Flowing::iterator outgoing,
                             std::exception_ptr error);

  Connection* connection_;
  shm::FinishedOperations* finished_;
  bool is_closed_ = false;
  bool has_last_ = false;
  // Frames are collected in queued_ while those in sending_ are sent.
  std::vector<std::byte> queued_, sending_;
  uint64_t credit_ = kMaxCredit;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Outgoing> announced_;
  Flowing flowing_;   // messages that the peer accepted
  size_t chunk_ = 0;  // bytes of flowing_.front() that the connection has
  std::vector<std::byte> copied_chunk_;
};

}  // namespace lockstep::tcp
