#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/shm/p2p_operation.h"
#include "lockstep/tcp/connection.h"
#include "lockstep/tcp/message_frame.h"
#include "lockstep/tcp/message_receiver.h"
#include "lockstep/tcp/message_sender.h"

namespace lockstep::tcp {

/// Sends and receives messages between ranks over connections of its own, as
/// c10d does. Messages from one rank to another with the same tag arrive in the
/// order sent. Messages with other tags may be received earlier. Any number of
/// operations of any size can be in progress (kMostAnnounced limits the
/// messages of a peer that no receive wants), so ranks that all send before
/// they receive do not deadlock. message_frame.h shows the protocol.
///
/// Operations that can finish at once do so in the caller's thread, so `done`
/// may be called before send() or receive() returns. Other operations are left
/// to a thread of this object, which calls `done` without holding a lock. That
/// thread is started by the first operation. `done` may start further
/// operations.
///
/// A small message (up to kEagerBytes) is copied, and its send is done at once,
/// while its receiver has space for messages that it did not ask for. The send
/// of any other message is done when a receive wanted the message and the
/// system has taken all of its data. Either way the message arrives even if
/// this object is destroyed right after that, unless the receiver ends or does
/// not read for kFlushTime.
///
/// An operation fails with CommError if its peer ended, left or failed, or if
/// it times out. A receive also fails if its message has another size (the send
/// is then done, as over shm), or if the send of its message fails. A send also
/// fails if the receive of its message times out. After a failed send it is not
/// known whether the message was received.
/// In any case the memory is not used after `done` was called. Other operations
/// with the same rank go on.
///
/// Several threads may call this object.
class PointToPoint {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Longest time for which the destructor waits until the system of every
  /// other rank has taken what was sent.
  static constexpr std::chrono::seconds kFlushTime{5};

  /// `sockets[r]` is connected to rank r, and sockets[rank] is closed. No other
  /// object may use them. `names` are the ranks' names in error messages: "rank
  /// 1 (host a, pid 7)". Throws OutOfResources.
  PointToPoint(int rank, std::vector<Socket> sockets,
               std::vector<std::string> names);
  /// Tells the other ranks that this rank left. Pending operations fail. Must
  /// not be called from `done`.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// Send and receive a message. `data` must stay valid until `done` is called.
  /// Throw InvalidArgument if the rank is not one of the other ranks.
  void send(int to, int tag, std::span<const std::byte> data,
            milliseconds timeout, shm::P2pDone done);
  void receive(int from, int tag, std::span<std::byte> data,
               milliseconds timeout, shm::P2pDone done);
  /// Receives the first message with the tag from any rank. Ranks that are gone
  /// make it fail only if all of them are gone.
  void receive_any(int tag, std::span<std::byte> data, milliseconds timeout,
                   shm::P2pDone done);

  /// Makes all operations of this rank, and those of other ranks with it, fail
  /// with `reason`.
  void abort(const std::string& reason) noexcept;

 private:
  using Clock = shm::P2pOperation::Clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Peer {
    explicit Peer(Socket socket);

    Connection connection;
    MessageSender sender{connection};
    Frame frame;                     // the frame that arrives now
    std::vector<std::byte> payload;  // its data, except for large messages
    /// "rank 1 (host a, pid 7) left the group". Set once no more is received.
    std::optional<std::string> end;
  };

  int ranks() const { return static_cast<int>(peers_.size()); }
  const std::string& name(int rank) const {
    return names_[static_cast<size_t>(rank)];
  }
  Peer& at(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<size_t>(rank)]; }

  Lock lock();
  /// Calls `done` of what finished since the last time. Releases the lock.
  void run_finished(Lock lock);
  shm::P2pOperation begin(shm::P2pOperation::Kind kind, int peer, int tag,
                          size_t bytes, milliseconds timeout,
                          shm::P2pDone done);
  void start_receive(int from, int tag, std::span<std::byte> data,
                     milliseconds timeout, shm::P2pDone done);
  /// Offers new frames to the sockets. The thread goes on if they are full.
  void send_queued();
  void wake();

  // The thread.
  void run();
  bool step();
  bool receive_from(int peer);
  void await_frame(int peer);
  void on_header(int peer);
  void on_frame(int peer);
  void lose(int peer);
  void sleep();

  /// Ends the operations that can't go on, and sets next_deadline_.
  void fail_operations();
  bool is_over(int peer) const;
  std::exception_ptr failure_of(const shm::P2pOperation& operation) const;
  std::string whereabouts(const shm::P2pOperation& operation) const;
  std::string all_ends() const;
  void leave();
  void flush();

  int rank_;
  std::vector<std::string> names_;
  FileDescriptor wake_;  // an eventfd

  // A thread locks turn_ until it has mutex_, so that the thread of this object
  // does not take mutex_ again and again while others wait for it.
  std::mutex turn_;
  std::mutex mutex_;        // guards what follows
  std::deque<Peer> peers_;  // by rank; not connected for this rank
  MessageReceiver receiver_;
  shm::FinishedOperations finished_;
  Clock::time_point next_deadline_ = Clock::time_point::max();
  std::optional<std::string> failure_;  // the reason of abort()
  bool has_left_ = false;
  std::thread thread_;
  std::atomic<bool> is_stopping_ = false;

  // Arguments of poll(). Only the thread uses them.
  std::vector<pollfd> polled_;  // wake_, and the connections of polled_ranks_
  std::vector<int> polled_ranks_;
  Clock::time_point wake_time_;
};

}  // namespace lockstep::tcp
