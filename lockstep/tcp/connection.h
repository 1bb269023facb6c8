#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>

#include "lockstep/tcp/tls.h"

namespace lockstep::tcp {

/// A stream socket to another rank, with queues of what is to be sent and
/// received over it. Bytes arrive in the order in which they were queued, and
/// messages have no headers, so both ends must queue the same sizes in the same
/// order.
///
/// One thread may use it at a time; any thread may call shut_down().
class Connection {
 public:
  Connection() = default;
  /// Makes `socket` non-blocking and turns Nagle's delay off.
  explicit Connection(Socket socket);

  bool is_open() const { return socket_.fd.is_open(); }
  int fd() const { return socket_.fd.get(); }

  /// `bytes` must not change until they are sent.
  void queue_send(std::span<const std::byte> bytes);
  /// Calls `done` when all of `bytes` are there. `done` may queue what comes
  /// next.
  void queue_receive(std::span<std::byte> bytes,
                     std::function<void()> done = {});
  bool has_sends() const { return !sends_.empty(); }
  bool has_receives() const { return !receives_.empty(); }
  /// Forgets what is queued.
  void clear();

  enum class Progress { kNone, kSome, kClosed };
  /// Sends what the socket takes now. kClosed means that the other end is gone.
  Progress send_some();
  /// Receives what has come. kClosed means that nothing more will come.
  Progress receive_some();
  /// Whether the socket took, or gave, less than was asked for at the last
  /// call. Then poll() says when it is ready again.
  bool is_full() const { return is_full_; }
  bool is_drained() const { return is_drained_; }
  void set_ready(bool to_send, bool to_receive);

  /// Calls of both ends then return kClosed. Any thread may call this.
  void shut_down() noexcept;

 private:
  struct Receive {
    std::span<std::byte> bytes;
    std::function<void()> done;
  };

  /// Removes `sent` bytes from the queue.
  void drop_sent(size_t sent);
  /// Takes `received` bytes off the queue, and calls `done` of each receive
  /// that is complete.
  void finish_received(size_t received);
  Progress send_encrypted();
  Progress receive_encrypted();

  Socket socket_;
  std::deque<std::span<const std::byte>> sends_;
  std::deque<Receive> receives_;
  bool is_full_ = false;
  bool is_drained_ = false;
};

}  // namespace lockstep::tcp
