#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>
#include <tuple>
#include <vector>

#include "lockstep/tcp/channel.h"
#include "tests/shm/ranks.h"

namespace lockstep::tcp {

using shm::Kind;
using shm::require;

using Bytes = std::vector<std::byte>;

/// Returns `bytes` of noise that depend on `seed`.
Bytes noise(size_t bytes, uint32_t seed);

/// An operation to wait for. Its error crosses threads as text, because
/// sanitizers don't see how libstdc++ counts the references to an exception.
class Awaited {
 public:
  MessageDone done() const;
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

/// The connections of the ranks.
enum class Way { kLocal, kTcp, kEncrypted };

/// Makes the doors of all ranks. The result is called once by each rank.
using Doors = std::function<Door(int rank, Kind kind)>;
Doors doors_for(Way way, int ranks);

/// Asks a shm::Group about its ranks.
struct GroupPeers : transport::Peers {
  explicit GroupPeers(const shm::Group& the_group) : group(the_group) {}
  std::optional<std::string> end_of(int rank) const override {
    return group.end_of(rank);
  }
  std::string state_of(int rank) const override { return group.state_of(rank); }

  const shm::Group& group;
};

/// The channel of a rank, and a group for the barriers of the tests.
struct ChannelRank {
  Channel& channel;
  shm::Group& group;
  int rank() const { return group.rank(); }
  int ranks() const { return group.ranks(); }
  int next() const { return (rank() + 1) % ranks(); }
  int previous() const { return (rank() + ranks() - 1) % ranks(); }

  /// Starts an operation. The data must exist until the operation is done.
  Awaited send(int to, int tag, std::span<const std::byte> data);
  Awaited receive(int from, int tag, std::span<std::byte> data);
  void barrier();

  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

using ChannelTask = std::function<void(ChannelRank&)>;

/// Like shm::run_ranks(), with a channel for each rank.
std::vector<std::string> run_channels(Way way, Kind kind, int ranks,
                                      const ChannelTask& task);

class ChannelTest : public testing::TestWithParam<std::tuple<Way, Kind, int>> {
 protected:
  /// Runs the task as every rank. No rank may fail.
  static void on_all(const ChannelTask& task);
};

/// Names instances: "LocalThreads4".
struct WayName {
  template <class Instance>
  std::string operator()(const Instance& instance) const {
    return std::apply([](auto... parts) { return (text_of(parts) + ...); },
                      instance.param);
  }

  static std::string text_of(Way way);

 private:
  static std::string text_of(Kind kind);
  static std::string text_of(size_t number);
};

/// Rank 0 in this process, and rank 1 in another process that runs `task` after
/// both have joined.
class TwoRanks {
 public:
  TwoRanks(Way way, const ChannelTask& task);
  pid_t pid() const { return process_.pid(); }
  shm::RankProcess& process() { return process_; }

 private:
  std::shared_ptr<const shm::Segment> segment_ = shm::Group::make_segment(2);
  Doors doors_;
  shm::RankProcess process_;
  shm::Group group_;
  GroupPeers peers_;
  Channel channel_;

 public:
  ChannelRank self;
};

/// Expects that `text` has all `parts`.
void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts);

/// A task that ends only when its process is killed.
void sleep_on(ChannelRank& self);

}  // namespace lockstep::tcp
