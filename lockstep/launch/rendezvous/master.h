#pragma once

#include "lockstep/control/control_block.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

// MASTER_ADDR and MASTER_PORT are for programs that are not Lockstep's: rank 0
// serves a store of its own there, as under a torchrun that does not share its
// agent's. Lockstep's programs use the agents' store instead.

/// Whether --master-port is the workers' alone. Several nodes meet there.
bool is_master_port_for_workers(const RunOptions& options);

/// Whether it is free, before anything begins. Throws LaunchError.
void check_master_port(const RunOptions& options);

/// Lets the round's workers into the store, and returns where its rank 0 is to
/// serve its own: a free port of node 0, which its agent tells the others, or
/// the one that the user wants. Under keys of this attempt. Throws LaunchError.
Endpoint begin_round(Rendezvous& rendezvous, const RunOptions& options,
                     int round);

/// Tells each worker of this node, in its line of the block, where the store
/// is, and the key that lets it in, in this round alone.
void grant_store_access(const Rendezvous& rendezvous,
                        const control::ControlBlock& block, int round);

[[noreturn]] void throw_port_in_use(const RunOptions& options,
                                    const Endpoint& endpoint);

}  // namespace lockstep::launch
