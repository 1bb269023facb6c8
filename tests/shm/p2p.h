#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/shm/point_to_point.h"
#include "tests/shm/ranks.h"

namespace lockstep::shm {

using Message = std::vector<std::byte>;

/// Returns `bytes` of noise that depend on `seed`.
Message noise(size_t bytes, uint32_t seed);

/// An operation to wait for. Its error crosses threads as text, because
/// sanitizers don't see how libstdc++ counts the references to an exception.
class Awaited {
 public:
  P2pDone done() const;
  /// Returns the source. Throws std::runtime_error with the operation's error.
  int get();
  /// Returns the operation's error, or "no error".
  std::string error();

 private:
  struct Outcome {
    int source;
    std::string error;
  };
  std::shared_ptr<std::promise<Outcome>> promise_ =
      std::make_shared<std::promise<Outcome>>();
};

/// The p2p of a rank, and a group for the barriers of the tests.
struct P2pRank {
  PointToPoint& p2p;
  Group& group;
  int rank() const { return group.rank(); }
  int ranks() const { return group.ranks(); }

  /// Starts an operation. The data must exist until the operation is done.
  Awaited send(int to, int tag, std::span<const std::byte> data);
  Awaited receive(int from, int tag, std::span<std::byte> data);
  Awaited receive_any(int tag, std::span<std::byte> data);
  void barrier();

  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

using P2pTask = std::function<void(P2pRank&)>;

/// Like run_ranks(), with a p2p for each rank.
std::vector<std::string> run_p2p(Kind kind, int ranks, const P2pTask& task);

}  // namespace lockstep::shm
