#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::shm {

/// Called once when an operation is over: with no exception, it is done.
/// `source`: the rank whose message was received; else the peer. Must not
/// throw.
using P2pDone = std::function<void(std::exception_ptr error, int source)>;

inline constexpr int kAnySource = -1;

/// What a send and a receive have in common.
struct P2pOperation {
  enum class Kind { kSend, kReceive };
  using Clock = std::chrono::steady_clock;

  Kind kind = Kind::kSend;
  int peer = kAnySource;
  int tag = 0;
  size_t bytes = 0;
  Clock::time_point deadline;
  P2pDone done;

  /// "send to rank 1 (64 bytes, tag 3)".
  std::string describe() const;
};

/// An operation that is over, up to what is done without a lock held: the copy
/// of a large message, and telling.
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
  std::function<void()> last_step_;  // throws if the operation fails after all
};
using FinishedOperations = std::vector<FinishedOperation>;

/// Why an operation can't go on; null while it can.
using P2pFailureOf = std::function<std::exception_ptr(const P2pOperation&)>;

}  // namespace lockstep::shm
