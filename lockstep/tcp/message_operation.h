#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace lockstep::tcp {

/// Called once, when a send or a receive has ended. `error` is null if it
/// succeeded. `source` is the rank whose message was received, or the peer.
/// Must not throw.
using MessageDone = std::function<void(std::exception_ptr error, int source)>;

inline constexpr int kAnySource = -1;

/// The common part of a send and a receive.
struct MessageOperation {
  enum class Kind { kSend, kReceive };
  using Clock = std::chrono::steady_clock;

  Kind kind = Kind::kSend;
  int peer = kAnySource;
  int tag = 0;
  size_t bytes = 0;
  Clock::time_point deadline;
  MessageDone done;

  /// Returns "send to rank 1 (64 bytes, tag 3)".
  std::string describe() const;
};

/// Throws InvalidArgument unless `peer` is one of the other `ranks`.
void check_peer(int peer, int rank, int ranks);

// The errors with which the operations of `rank` fail.

/// `rank` left the group before the operation ended.
std::exception_ptr left_during(const MessageOperation& operation, int rank);
/// `end` says how the peer ended: "rank 1 (host a, pid 7) left the group".
std::exception_ptr ended_by(const std::string& end,
                            const MessageOperation& operation, int rank);
/// `whereabouts` says what the peer does.
std::exception_ptr timed_out(const MessageOperation& operation, int rank,
                             const std::string& whereabouts);
/// The message that `source` sent with `tag` has `sent_bytes` and not `bytes`.
std::exception_ptr wrong_size(int source, uint64_t sent_bytes, int tag,
                              int rank, uint64_t bytes);

}  // namespace lockstep::tcp
