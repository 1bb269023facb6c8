#include "tests/tcp/p2p_ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/tcp/listener.h"

namespace lockstep::tcp {
namespace {

using Table = std::vector<std::vector<Socket>>;  // by rank, of each rank

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

/// Runs the task as this rank. If it fails, the other ranks are told.
void run_as(shm::Group& group, std::vector<Socket> sockets,
            const TcpTask& task) {
  PointToPoint p2p(group.rank(), std::move(sockets), rank_names(group.ranks()));
  TcpRank self{p2p, group};
  try {
    task(self);
  } catch (const std::exception& error) {
    p2p.abort(error.what());
    throw;
  }
}

}  // namespace

std::pair<Socket, Socket> connected_pair() {
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
  std::pair<Socket, Socket> result;
  result.first.fd =
      FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(result.first.fd.get(), raw, size) != 0) {
    throw std::runtime_error("can't connect");
  }
  result.second.fd = FileDescriptor(
      ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return result;
}

std::vector<std::string> rank_names(int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) {
    names.push_back(fmt::format("rank {} (host a)", rank));
  }
  return names;
}

Awaited TcpRank::send(int to, int tag, std::span<const std::byte> data) {
  Awaited result;
  p2p.send(to, tag, data, timeout, result.done());
  return result;
}

Awaited TcpRank::receive(int from, int tag, std::span<std::byte> data) {
  Awaited result;
  p2p.receive(from, tag, data, timeout, result.done());
  return result;
}

Awaited TcpRank::receive_any(int tag, std::span<std::byte> data) {
  Awaited result;
  p2p.receive_any(tag, data, timeout, result.done());
  return result;
}

void TcpRank::barrier() {
  group.begin({.operation = shm::Operation::kBarrier}, group.timeout());
  group.sync();
}

std::vector<std::string> run_p2p(Kind kind, int ranks, const TcpTask& task) {
  Table table = connect_all(ranks);
  return shm::run_ranks(kind, ranks, [&](shm::Group& group) {
    std::vector<Socket> own =
        std::move(table[static_cast<size_t>(group.rank())]);
    if (kind == Kind::kProcesses) table.clear();
    run_as(group, std::move(own), task);
  });
}

std::vector<std::string> run_listening_p2p(int ranks, const TcpTask& task) {
  std::vector<std::string> announcements(static_cast<size_t>(ranks));
  return shm::run_ranks(Kind::kThreads, ranks, [&](shm::Group& group) {
    Listener listener("127.0.0.1", "");
    announcements[static_cast<size_t>(group.rank())] = listener.announcement();
    group.begin({.operation = shm::Operation::kBarrier}, group.timeout());
    group.sync();
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    run_as(group,
           listener.connect(group.rank(), announcements, deadline,
                            [] { return false; }),
           task);
  });
}

TwoRanks::TwoRanks(const TcpTask& task)
    : segment_(shm::Group::make_segment(2)) {
  constexpr std::chrono::seconds kTimeout{60};
  Table table = connect_all(2);
  process_ = std::make_unique<shm::RankProcess>([&] {
    std::vector<Socket> own = std::move(table[1]);
    table.clear();
    shm::Group group(segment_, 1, 2, kTimeout);
    run_as(group, std::move(own), [&](TcpRank& rank_1) {
      rank_1.barrier();
      task(rank_1);
    });
  });
  table[1].clear();
  group_ = std::make_unique<shm::Group>(segment_, 0, 2, kTimeout);
  p2p_ = std::make_unique<PointToPoint>(0, std::move(table[0]), rank_names(2));
  self = std::make_unique<TcpRank>(TcpRank{*p2p_, *group_});
  self->barrier();
}

void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos)
        << "no '" << part << "' in: " << text;
  }
}

void sleep_on(TcpRank& /*self*/) {
  for (;;) ::pause();
}

}  // namespace lockstep::tcp
