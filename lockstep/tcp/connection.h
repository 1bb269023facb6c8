#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>

#include "lockstep/tcp/tls.h"

namespace lockstep::tcp {

/// A stream socket to one other rank, with what waits to be sent and to be
/// received over it. Bytes come in the order in which they were queued, so both
/// ends queue the same sizes in the same order; nothing else tells them apart.
///
/// For one thread at a time, but for shut_down().
class Connection {
 public:
  Connection() = default;
  /// Makes `socket` non-blocking and turns Nagle's delay off.
  explicit Connection(Socket socket);

  bool is_open() const { return socket_.fd.is_open(); }
  int fd() const { return socket_.fd.get(); }

  /// `bytes` must stay as they are until they are sent.
  void queue_send(std::span<const std::byte> bytes);
  /// Calls `done` when all of `bytes` are there. What it queues comes next.
  void queue_receive(std::span<std::byte> bytes,
                     std::function<void()> done = {});
  bool has_sends() const { return !sends_.empty(); }
  bool has_receives() const { return !receives_.empty(); }
  /// Forgets what is queued.
  void clear();

  enum class Progress { kNone, kSome, kClosed };
  /// Sends what the socket takes now. kClosed: the other end is gone.
  Progress send_some();
  /// Receives what has come. kClosed: nothing more will.
  Progress receive_some();
  /// The socket would have taken, or given, no more at the last call: only
  /// poll() knows when it does again.
  bool is_full() const { return is_full_; }
  bool is_drained() const { return is_drained_; }
  void set_ready(bool to_send, bool to_receive);

  /// Both ends' calls end with kClosed. May be called by any thread.
  void shut_down() noexcept;

 private:
  struct Receive {
    std::span<std::byte> bytes;
    std::function<void()> done;
  };

  /// Of `sent` bytes: forgets them.
  void drop_sent(size_t sent);
  /// Of `received` bytes, in the order of what is queued: calls back.
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
