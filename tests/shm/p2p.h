#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/shm/p2p_channel.h"
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

/// The largest message that shm/ and tcp/ send without asking the receiver, and
/// more messages than the receiver then has space for.
inline constexpr size_t kSmallLimit = 4096;
inline constexpr int kTooManySmall = 48;

// test_shm and test_tcp define these, each for its own p2p.

/// Connects the ranks. The result is called once by each rank, and returns its
/// p2p.
using P2pJoin = std::function<std::unique_ptr<P2pChannel>(int rank, Kind kind)>;
P2pJoin connect_p2p(int ranks);
/// Returns the name of a rank in error messages: "rank 1 (host a, pid 7)".
std::string name_of(int rank, pid_t pid);
/// The state of a stopped rank in error messages, after its name.
extern const char* const kStateOfStoppedRank;

/// The p2p of a rank, and a group for the barriers of the tests.
struct P2pRank {
  P2pChannel& p2p;
  Group& group;
  int rank() const { return group.rank(); }
  int ranks() const { return group.ranks(); }
  int next() const { return (rank() + 1) % ranks(); }
  int previous() const { return (rank() + ranks() - 1) % ranks(); }

  /// Starts an operation. The data must exist until the operation is done.
  Awaited send(int to, int tag, std::span<const std::byte> data);
  Awaited receive(int from, int tag, std::span<std::byte> data);
  Awaited receive_any(int tag, std::span<std::byte> data);
  void barrier();

  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

using P2pTask = std::function<void(P2pRank&)>;

/// Runs the task as the rank of `group`. If it fails, the other ranks are told.
void run_as(Group& group, P2pChannel& p2p, const P2pTask& task);

/// Like run_ranks(), with a p2p for each rank.
std::vector<std::string> run_p2p(Kind kind, int ranks, const P2pTask& task);

class P2pTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  /// Runs the task as every rank. No rank may fail.
  static void on_all(const P2pTask& task);
};

/// Rank 0 in this process, and rank 1 in another process that runs `task` after
/// both have joined.
class TwoRanks {
 public:
  explicit TwoRanks(const P2pTask& task);
  pid_t pid() const { return process_.pid(); }
  RankProcess& process() { return process_; }

 private:
  std::shared_ptr<const Segment> segment_ = Group::make_segment(2);
  P2pJoin join_ = connect_p2p(2);
  RankProcess process_;
  Group group_;
  std::unique_ptr<P2pChannel> p2p_;

 public:
  P2pRank self;
};

/// Expects that `text` has all `parts`.
void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts);

/// A task that ends only when its process is killed.
void sleep_on(P2pRank& self);

}  // namespace lockstep::shm
