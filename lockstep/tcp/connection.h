#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/store/secure_socket.h"

namespace lockstep::tcp {

/// A stream socket to another rank, with queues of pending sends and receives.
/// Bytes arrive in the order in which they were queued, and messages have no
/// headers, so both ends must queue the same sizes in the same order.
///
/// One thread may use it at a time. Any thread may call shut_down()
/// and reset().
class Connection {
 public:
  Connection() = default;
  /// Makes `socket` non-blocking and sets TCP_NODELAY.
  explicit Connection(store::SecureSocket socket);

  bool is_open() const { return socket_.is_open(); }
  int fd() const { return socket_.fd(); }

  /// Queues a send. `bytes` must not change until they are sent.
  void queue_send(std::span<const std::byte> bytes);
  /// Queues a receive. Calls `done` when all of `bytes` have arrived. `done`
  /// may queue the next operations.
  void queue_receive(std::span<std::byte> bytes,
                     std::function<void()> done = {});
  bool has_sends() const { return !sends_.empty(); }
  bool has_receives() const { return !receives_.empty(); }
  /// Drops all queued operations.
  void clear();

  enum class Progress { kNone, kSome, kClosed };
  /// Sends as much as the socket takes. kClosed means that the other end is
  /// gone.
  Progress send_some();
  /// Receives the available bytes. kClosed means that no more will arrive.
  Progress receive_some();
  /// Return whether the socket took (is_full) or had (is_drained) fewer bytes
  /// than requested in the last call. poll() then reports when it is ready.
  bool is_full() const { return is_full_; }
  bool is_drained() const { return is_drained_; }
  /// Takes note of the events that poll() returned.
  void set_ready(short events);

  /// Shuts the connection down, so that calls on both ends return kClosed. Any
  /// thread may call this.
  void shut_down() noexcept;
  /// Works as shut_down(), but the other end can't send any more either. After
  /// shut_down(), it does not notice that nobody reads what it sends.
  void reset() noexcept;

 private:
  struct Receive {
    std::span<std::byte> bytes;
    std::function<void()> done;
  };

  /// Removes `sent` bytes from the queue.
  void drop_sent(size_t sent);
  /// Removes `received` bytes from the queue, and calls `done` of each receive
  /// that is complete.
  void finish_received(size_t received);
  Progress send_encrypted();
  Progress receive_encrypted();

  store::SecureSocket socket_;
  std::deque<std::span<const std::byte>> sends_;
  std::deque<Receive> receives_;
  bool is_full_ = false;
  bool is_drained_ = false;
};

}  // namespace lockstep::tcp
