#pragma once

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
#include "lockstep/shm/p2p_channel.h"
#include "lockstep/tcp/connection.h"
#include "lockstep/tcp/message_frame.h"
#include "lockstep/tcp/message_receiver.h"
#include "lockstep/tcp/message_sender.h"

namespace lockstep::tcp {

/// A channel over connections of its own. kMaxAnnouncedBytes limits the
/// messages of a peer that no receive wants. message_frame.h shows the
/// protocol. The first operation starts the thread of this object. `done` may
/// start further operations.
///
/// A small message (up to kEagerBytes) is copied, and its send is done at once,
/// while its receiver has space for messages that it did not ask for. The send
/// of any other message is done when a receive wanted the message and the
/// system has taken all of its data. Either way the message arrives even if
/// this object is destroyed right after that, unless the receiver ends or does
/// not read for kFlushTime.
///
/// If a receive fails because its message has another size, the send is done,
/// as over shm. A receive also fails if the send of its message fails, and a
/// send if the receive of its message times out. In any case the memory is not
/// used after `done` was called. Other operations with the same rank go on.
class PointToPoint : public shm::P2pChannel {
 public:
  /// Longest time for which the destructor waits until the system of every
  /// other rank has taken what was sent.
  static constexpr std::chrono::seconds kFlushTime{5};

  /// `sockets[r]` is connected to rank r, and sockets[rank] is closed. No other
  /// object may use them. `names` are the ranks' names in error messages: "rank
  /// 1 (host a, pid 7)". Throws OutOfResources.
  PointToPoint(int rank, std::vector<store::SecureSocket> sockets,
               std::vector<std::string> names);
  ~PointToPoint() override;

  /// Makes all operations of this rank, and those of other ranks with it, fail
  /// with `reason`.
  void abort(const std::string& reason) noexcept override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Peer {
    Peer(store::SecureSocket socket, shm::FinishedOperations& finished);

    Connection connection;
    MessageSender sender;
    Frame frame;                     // the frame that arrives now
    std::vector<std::byte> payload;  // its data, except for large messages
    /// "rank 1 (host a, pid 7) left the group". Set once no more is received.
    std::optional<std::string> end;
  };

  const std::string& name(int rank) const {
    return names_[static_cast<size_t>(rank)];
  }
  Peer& at(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<size_t>(rank)]; }

  Lock lock();
  /// Calls `done` of what finished since the last time. Releases the lock.
  void run_finished(Lock lock);
  void start_send(shm::P2pOperation send,
                  std::span<const std::byte> data) override;
  void start_receive(shm::P2pOperation receive,
                     std::span<std::byte> data) override;
  const std::optional<std::string>& end_of(int rank) const override {
    return at(rank).end;
  }
  std::string state_of(int rank) const override;
  std::exception_ptr failure_of(
      const shm::P2pOperation& operation) const override;
  /// Starts the thread, and makes it wake up at the deadline.
  void expect_end(Clock::time_point deadline);
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
  void leave();
  void flush();

  std::vector<std::string> names_;
  FileDescriptor wake_;  // an eventfd

  // A thread locks turn_ until it has mutex_, so that the thread of this object
  // does not take mutex_ again and again while others wait for it.
  std::mutex turn_;
  std::mutex mutex_;  // guards what follows
  shm::FinishedOperations finished_;
  std::deque<Peer> peers_;  // by rank; not connected for this rank
  MessageReceiver receiver_;
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
