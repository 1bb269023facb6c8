#pragma once

#include <map>
#include <string>

#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/launch/rendezvous/node.h"

namespace lockstep::launch {

/// Returns the environment variables of a worker, with torchrun's names: RANK,
/// WORLD_SIZE, MASTER_ADDR and so on. They replace those that the options add.
/// The worker has `core_count` cores. `attempt` is the number of earlier
/// attempts.
std::map<std::string, std::string> worker_variables(
    const RunOptions& options, const Group& group, const Endpoint& master,
    int local_rank, int attempt, size_t core_count,
    const std::string& error_file);

}  // namespace lockstep::launch
