#include "tests/tcp/ranks.h"

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
