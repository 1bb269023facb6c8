#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::shm {

/// A callback that is called once when an operation has ended. `error` is null
/// if it succeeded. `source` is the rank whose message was received, or the
/// peer. Must not throw.
using P2pDone = std::function<void(std::exception_ptr error, int source)>;

inline constexpr int kAnySource = -1;

/// The common part of a send and a receive.
struct P2pOperation {
  enum class Kind { kSend, kReceive };
  using Clock = std::chrono::steady_clock;

  Kind kind = Kind::kSend;
  int peer = kAnySource;
  int tag = 0;
  size_t bytes = 0;
  Clock::time_point deadline;
  P2pDone done;

  /// Returns a description such as "send to rank 1 (64 bytes, tag 3)".
  std::string describe() const;
};

/// Throws InvalidArgument unless `peer` is one of the other `ranks`.
void check_peer(int peer, int rank, int ranks);

// The errors with which the operations of `rank` fail.

/// `rank` left the group before the operation ended.
std::exception_ptr left_during(const P2pOperation& operation, int rank);
/// `end` says how the peer ended: "rank 1 (host a, pid 7) left the group".
std::exception_ptr ended_by(const std::string& end,
                            const P2pOperation& operation, int rank);
/// `whereabouts` says what the peer does.
std::exception_ptr timed_out(const P2pOperation& operation, int rank,
                             const std::string& whereabouts);
/// The message that `source` sent with `tag` has `sent_bytes` and not `bytes`.
std::exception_ptr wrong_size(int source, uint64_t sent_bytes, int tag,
                              int rank, uint64_t bytes);

/// An operation that has ended, except for the steps that are done without
/// holding a lock: copying a large message, and calling `done`.
class FinishedOperation {
 public:
  FinishedOperation(P2pOperation operation, int source,
                    std::exception_ptr error,
                    std::function<void()> last_step = {});
  void run();

 private:
  P2pOperation operation_;
  int source_;
  std::exception_ptr error_;
  std::function<void()> last_step_;  // may throw if the operation fails
};
using FinishedOperations = std::vector<FinishedOperation>;

/// A function that returns why an operation can't go on, or null if it can.
using P2pFailureOf = std::function<std::exception_ptr(const P2pOperation&)>;

}  // namespace lockstep::shm
