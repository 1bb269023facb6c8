#include "tests/tcp/ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>

#include <fmt/format.h>

#include "lockstep/tcp/listener.h"

namespace lockstep::tcp {
namespace {

/// Connects this rank to the others by Listener.
std::vector<store::SecureSocket> connect_listening(
    shm::Group& group, std::vector<std::string>& announcements, Data data) {
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

std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts, Data data) {
  std::vector<std::string> announcements(static_cast<size_t>(ranks));
  return shm::run_ranks(Kind::kThreads, ranks, [&](shm::Group& group) {
    Mesh mesh(group.rank(), connect_listening(group, announcements, data),
              rank_names(ranks), hosts);
    task(mesh);
  });
}

}  // namespace lockstep::tcp
