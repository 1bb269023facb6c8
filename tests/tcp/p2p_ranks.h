#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tcp/point_to_point.h"
#include "tests/shm/p2p.h"
#include "tests/shm/ranks.h"

namespace lockstep::tcp {

using shm::Awaited;
using shm::Kind;
using shm::Message;
using shm::noise;
using shm::require;

/// Two ends of a TCP connection over loopback.
std::pair<Socket, Socket> connected_pair();

/// "rank 0 (host a)", "rank 1 (host a)" and so on.
std::vector<std::string> rank_names(int ranks);

/// A rank's p2p, and the group whose barrier the tests use.
struct TcpRank {
  PointToPoint& p2p;
  shm::Group& group;
  int rank() const { return group.rank(); }
  int ranks() const { return group.ranks(); }

  /// Start an operation. The data must stay until it is over.
  Awaited send(int to, int tag, std::span<const std::byte> data);
  Awaited receive(int from, int tag, std::span<std::byte> data);
  Awaited receive_any(int tag, std::span<std::byte> data);
  void barrier();

  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

using TcpTask = std::function<void(TcpRank&)>;

/// As shm::run_ranks(), with a p2p for each rank.
std::vector<std::string> run_p2p(Kind kind, int ranks, const TcpTask& task);

/// As run_p2p() for threads, but connects them by Listener, which does TLS if
/// the environment asks for it.
std::vector<std::string> run_listening_p2p(int ranks, const TcpTask& task);

/// Rank 0 in this process, and rank 1 in another that runs `task` after both
/// are here.
class TwoRanks {
 public:
  explicit TwoRanks(const TcpTask& task);
  pid_t pid() const { return process_->pid(); }
  shm::RankProcess& process() { return *process_; }

 private:
  std::shared_ptr<const shm::Segment> segment_;
  std::unique_ptr<shm::RankProcess> process_;
  std::unique_ptr<shm::Group> group_;
  std::unique_ptr<PointToPoint> p2p_;

 public:
  std::unique_ptr<TcpRank> self;
};

/// Expects that `text` has all `parts`.
void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts);

/// A task that ends only when its process is killed.
void sleep_on(TcpRank& self);

}  // namespace lockstep::tcp
