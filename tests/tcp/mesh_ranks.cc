#include "tests/tcp/mesh_ranks.h"

#include <barrier>
#include <exception>
#include <thread>

#include <fmt/format.h>

#include "lockstep/tcp/listener.h"

namespace lockstep::tcp {

std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts) {
  const auto count = static_cast<size_t>(ranks);
  std::vector<std::string> announcements(count), names(count), errors(count);
  std::barrier all_listen(ranks);
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < count; ++rank) {
    names[rank] = fmt::format("rank {}", rank);
  }
  for (size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Listener listener("127.0.0.1", "");
        announcements[rank] = listener.announcement();
        all_listen.arrive_and_wait();
        const auto deadline =
            std::chrono::steady_clock::now() + std::chrono::seconds(60);
        Mesh mesh(static_cast<int>(rank),
                  listener.connect(static_cast<int>(rank), announcements,
                                   deadline, [] { return false; }),
                  names, hosts);
        task(mesh);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

}  // namespace lockstep::tcp
