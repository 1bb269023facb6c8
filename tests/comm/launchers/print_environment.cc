// Prints this rank's place as read_environment() tells it, in one line.

#include <cstdio>
#include <exception>

#include "lockstep/comm/environment.h"

int main() {
  try {
    const auto its = lockstep::read_environment();
    std::printf("%s rank %d/%d local %d/%d node %d master %s x %zu job %s\n",
                its.launcher.c_str(), its.rank, its.world_size, its.local_rank,
                its.local_world_size, its.node_rank, its.master_addr.c_str(),
                its.master_ports.size(), its.run_id.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
