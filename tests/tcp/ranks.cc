#include "tests/tcp/ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>

#include <fmt/format.h>

#include "lockstep/tcp/listener.h"
#include "lockstep/tcp/point_to_point.h"

namespace lockstep::tcp {
namespace {

using Table =
    std::vector<std::vector<store::SecureSocket>>;  // by rank, of each rank

Table connect_all(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  Table table(count);
  for (auto& row : table) row.resize(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < a; ++b) {
      auto [first, second] = connected_pair();
      table[a][b] = std::move(first);
      table[b][a] = std::move(second);
    }
  }
  return table;
}

/// Connects this rank to the others by Listener.
std::vector<store::SecureSocket> connect_listening(
    shm::Group& group, std::vector<std::string>& announcements,
    Listener::Data data) {
  Listener listener("127.0.0.1", "", data);
  announcements[static_cast<size_t>(group.rank())] = listener.announcement();
  group.begin({.operation = transport::Operation::kBarrier}, group.timeout());
  group.sync();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  return listener.connect(group.rank(), announcements, deadline,
                          [] { return false; });
}

}  // namespace

std::pair<store::SecureSocket, store::SecureSocket> connected_pair() {
  const FileDescriptor listening(
      ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listening.get(), raw, size) != 0 ||
      ::listen(listening.get(), 1) != 0 ||
      ::getsockname(listening.get(), raw, &size) != 0) {
    throw std::runtime_error("can't listen");
  }
  FileDescriptor first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(first.get(), raw, size) != 0) {
    throw std::runtime_error("can't connect");
  }
  FileDescriptor second(
      ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {store::SecureSocket(std::move(first)),
          store::SecureSocket(std::move(second))};
}

std::vector<std::string> rank_names(int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) {
    names.push_back(fmt::format("rank {} (host a)", rank));
  }
  return names;
}

std::vector<std::string> run_listening_p2p(int ranks, Listener::Data data,
                                           const P2pTask& task) {
  std::vector<std::string> announcements(static_cast<size_t>(ranks));
  return shm::run_ranks(Kind::kThreads, ranks, [&](shm::Group& group) {
    PointToPoint p2p(group.rank(),
                     connect_listening(group, announcements, data),
                     rank_names(ranks));
    shm::run_as(group, p2p, task);
  });
}

std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts, Listener::Data data) {
  std::vector<std::string> announcements(static_cast<size_t>(ranks));
  return shm::run_ranks(Kind::kThreads, ranks, [&](shm::Group& group) {
    Mesh mesh(group.rank(), connect_listening(group, announcements, data),
              rank_names(ranks), hosts);
    task(mesh);
  });
}

}  // namespace lockstep::tcp

namespace lockstep::shm {

P2pJoin connect_p2p(int ranks) {
  auto table = std::make_shared<tcp::Table>(tcp::connect_all(ranks));
  return [table, ranks](int rank, Kind kind) {
    auto own = std::move((*table)[static_cast<size_t>(rank)]);
    // Otherwise the others would not notice the end of a process.
    if (kind == Kind::kProcesses) table->clear();
    return std::make_unique<tcp::PointToPoint>(rank, std::move(own),
                                               tcp::rank_names(ranks));
  };
}

std::string name_of(int rank, pid_t /*pid*/) {
  return tcp::rank_names(rank + 1).back();
}

const char* const kStateOfStoppedRank = " is connected";

}  // namespace lockstep::shm
