#pragma once

#include "lockstep/control/control_block.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

// MASTER_ADDR and MASTER_PORT are for programs that do not use Lockstep. In
// those, rank 0 serves a separate store, as with a torchrun agent that does not
// share its store. Programs that use Lockstep connect to the agents' store
// instead.

/// Returns true if --master-port is only for the workers. With several nodes,
/// the agents' store listens there.
bool is_master_port_for_workers(const RunOptions& options);

/// Throws LaunchError if the workers' port is in use.
void check_master_port(const RunOptions& options);

/// Admits the workers of `round` to the agents' store. Returns MASTER_ADDR and
/// MASTER_PORT: a free port of node 0, which its agent publishes under a key of
/// this attempt, or the port that the user chose. Throws LaunchError.
Endpoint begin_round(Rendezvous& rendezvous, const RunOptions& options,
                     int round);

/// Writes the store's address, and the key that admits the worker in this round
/// only, into the slot of each worker of this node.
void grant_store_access(const Rendezvous& rendezvous,
                        const control::ControlBlock& block, int round);

[[noreturn]] void throw_port_in_use(const RunOptions& options,
                                    const Endpoint& endpoint);

}  // namespace lockstep::launch
