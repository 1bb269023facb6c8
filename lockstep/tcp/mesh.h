#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tcp/connection.h"
#include "lockstep/transport/call.h"

namespace lockstep::tcp {

/// The connections of this rank to all other ranks.
///
/// A collective calls begin(), queues its sends and receives, and calls
/// complete(). complete() does all of them in the caller's thread: it sends and
/// receives as much as the sockets allow, and sleeps in poll() when no socket
/// is ready. The first bytes for a peer describe the call, so a peer that made
/// a different call is detected.
///
/// After an error the mesh can't be used any more. Its connections are closed,
/// which ends the waits of the other ranks. One thread may use it at a time.
/// Any thread may call abort().
class Mesh {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  /// The number of hosts on which the ranks run. All ranks must pass the same.
  enum class Hosts { kOne, kSeveral };

  /// `sockets[r]` is connected to rank r, and sockets[rank] is closed. `names`
  /// are the ranks' names in error messages: "rank 1 (host a, pid 7)".
  Mesh(int rank, std::vector<store::SecureSocket> sockets,
       std::vector<std::string> names, Hosts hosts = Hosts::kOne);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  Hosts hosts() const { return hosts_; }

  /// Starts a collective. A wait ends if nothing is sent or received for
  /// `timeout`. Throws InvalidArgument for a root that is not a rank.
  void begin(const transport::Call& call, Milliseconds timeout);
  /// Queues a send. `bytes` must not change until complete() returns, or until
  /// the peer has answered them.
  void send(int peer, std::span<const std::byte> bytes);
  /// Queues a receive. Calls `done` when `bytes` have arrived. `done` may queue
  /// more operations.
  void receive(int peer, std::span<std::byte> bytes,
               std::function<void()> done = {});
  void send_to_all(std::span<const std::byte> bytes);
  /// Does all queued sends and receives. Throws CommError if a rank is gone,
  /// stalls, or made a different call.
  void complete();

  /// Returns the number of bytes that this rank has sent or queued so far. Any
  /// thread may call this.
  int64_t sent_bytes() const { return sent_bytes_; }

  /// Works as Transport::end_of() and state_of().
  std::optional<std::string> end_of(int rank) const;
  std::string state_of(int rank) const;

  /// Returns memory for this collective, aligned to cache lines. The next call
  /// invalidates it.
  std::span<std::byte> scratch(size_t bytes);

  /// Throws CommError, and ends the waits of the other ranks.
  [[noreturn]] void give_up(const Problem& problem) {
    give_up(problem, &Connection::shut_down);
  }
  /// Ends the waits of this rank and of the other ranks. Any thread may call
  /// this.
  void abort(const std::string& reason) noexcept {
    abort(reason, &Connection::shut_down);
  }

 private:
  struct Header {
    uint64_t sequence = 0;
    transport::Call call;
  };
  struct Peer {
    Connection connection;
    Header header;  // the call of the peer
    bool has_sent_header = false;
    bool has_awaited_header = false;
  };

  using EndConnection = void (Connection::*)() noexcept;

  [[noreturn]] void give_up(const Problem& problem, EndConnection end);
  void abort(const std::string& reason, EndConnection end) noexcept;
  void check_usable() const;
  void check_header(int peer);
  void wait_until(Clock::time_point deadline);
  [[noreturn]] void lose(int peer);
  [[noreturn]] void time_out();
  const std::string& name(int rank) const {
    return names_[static_cast<size_t>(rank)];
  }

  int rank_;
  Hosts hosts_;
  std::vector<std::string> names_;
  std::vector<Peer> peers_;  // by rank; not connected for this rank
  Header header_;
  Milliseconds timeout_{};
  std::vector<pollfd> polled_;
  std::vector<int> polled_ranks_;
  std::vector<std::byte> scratch_;
  std::atomic<int64_t> sent_bytes_ = 0;
  std::atomic<bool> is_broken_ = false;
  mutable std::mutex mutex_;  // guards reason_
  std::string reason_;
};

}  // namespace lockstep::tcp
