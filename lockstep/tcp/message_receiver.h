#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "lockstep/shm/p2p_operation.h"
#include "lockstep/tcp/message_frame.h"

namespace lockstep::tcp {

/// The receives of a rank, and the messages of its peers that no receive wants
/// yet. Matches them in order. One thread may use it at a time. Functions that
/// get what a peer sent throw CommError if that is not possible.
class MessageReceiver {
 public:
  using Time = shm::P2pOperation::Clock::time_point;
  /// Access to the connections of the peers: queues a frame, or redirects the
  /// chunk that arrives now to `scratch`.
  struct Links {
    std::function<void(int peer, const Frame& frame)> queue;
    std::function<void(int peer, std::vector<std::byte>& scratch)> redirect;
  };

  /// Operations that end are added to `finished`.
  MessageReceiver(int rank, int ranks, Links links,
                  shm::FinishedOperations& finished);

  /// Adds a receive. `data` must stay valid until it ends. It ends at once if a
  /// small message has arrived for it.
  void add(shm::P2pOperation receive, std::span<std::byte> data);

  // Frames from a peer.
  void on_message(int source, int tag, std::span<const std::byte> data);
  void on_announce(int source, const Frame& frame);
  /// Returns where the next bytes of a large message belong.
  std::span<std::byte> memory_for(int source, const Frame& data);
  /// Takes note that these bytes have arrived.
  void on_data(int source, const Frame& data);
  void on_withdraw(int source, uint64_t id,
                   const shm::P2pFailureOf& failure_of);
  /// Ends the receives of messages that can't arrive, because the peer is gone.
  void on_end(int source, const shm::P2pFailureOf& failure_of);

  /// Ends the receives for which `failure_of` returns an error. Returns the
  /// earliest deadline of the others.
  Time fail(const shm::P2pFailureOf& failure_of);

 private:
  struct Pending {
    shm::P2pOperation receive;
    std::span<std::byte> data;
  };
  /// A message that no receive wants yet.
  struct Arrived {
    int source;
    int tag;
    uint64_t bytes;
    uint64_t id;                  // 0 for a small message
    std::vector<std::byte> data;  // of a small message
  };
  /// A message that was accepted and is not complete.
  struct Transfer {
    Pending pending;
    size_t received = 0;
    bool is_dropped = false;  // its receive has ended
  };
  struct Source {
    uint64_t last_id = 0;
    uint64_t held = 0;      // credit that the source has used
    uint64_t consumed = 0;  // part of it that can be given back
    size_t announced = 0;   // messages in arrived_
    std::map<uint64_t, Transfer> transfers;
    uint64_t arriving = 0;  // id of the chunk that arrives now
    std::vector<std::byte> scratch;
  };

  Source& at(int source) { return sources_[static_cast<size_t>(source)]; }
  std::deque<Pending>::iterator find_pending(int source, int tag);
  /// Copies a small message to the receive that wants it.
  void deliver(Pending pending, int source, std::span<const std::byte> data);
  /// Accepts the announced message for the receive, or refuses it if its size
  /// is another.
  void answer(Pending pending, int source, uint64_t id, uint64_t bytes);
  void give_credit(int source, uint64_t charge);
  std::exception_ptr size_error(const Pending& pending, int source,
                                uint64_t bytes) const;

  int rank_;
  Links links_;
  shm::FinishedOperations& finished_;
  std::vector<Source> sources_;  // by rank
  std::deque<Pending> pending_;
  std::deque<Arrived> arrived_;  // messages of a source in the order sent
};

}  // namespace lockstep::tcp
