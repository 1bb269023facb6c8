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

/// `bytes` of noise that `seed` decides.
Message noise(size_t bytes, uint32_t seed);

/// An operation to wait for. Its error crosses threads as text: a sanitizer
/// does not see what libstdc++ counts an exception's references with.
class Awaited {
 public:
  P2pDone done() const;
  /// The source; throws std::runtime_error with the operation's error.
  int get();
  /// The operation's error, or "no error".
  std::string error();

 private:
  struct Outcome {
    int source;
    std::string error;
  };
  std::shared_ptr<std::promise<Outcome>> promise_ =
      std::make_shared<std::promise<Outcome>>();
};

/// A rank's p2p and group, whose barrier the tests use.
struct P2pRank {
  PointToPoint& p2p;
  Group& group;
  int rank() const { return group.rank(); }
  int ranks() const { return group.ranks(); }

  /// Start an operation. The data must stay until it is over.
  Awaited send(int to, int tag, std::span<const std::byte> data);
  Awaited receive(int from, int tag, std::span<std::byte> data);
  Awaited receive_any(int tag, std::span<std::byte> data);
  void barrier();

  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

using P2pTask = std::function<void(P2pRank&)>;

/// As run_ranks(), with a p2p for each rank.
std::vector<std::string> run_p2p(Kind kind, int ranks, const P2pTask& task);

}  // namespace lockstep::shm
