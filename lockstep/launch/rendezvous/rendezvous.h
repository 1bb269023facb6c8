#pragma once

#include <string>
#include <vector>

#include "lockstep/control/control_block.h"
#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/rendezvous/job_store.h"
#include "lockstep/launch/rendezvous/membership.h"

namespace lockstep::launch {

/// The result of a rendezvous: the agents of a job know each other and share a
/// store.
struct Rendezvous {
  Group group;
  int attempt = 0;  ///< of this group; above 0 for a late node
  /// Number of members that the agent that serves the store has considered.
  int known_members = 0;
  JobStore store;
  std::string prefix;         ///< prefix of all keys of the job
  bool serves_store = false;  ///< the store ends with this agent

  /// Returns the job's key `name`, regardless of the store's present prefix.
  std::string key(const std::string& name) const { return "/" + prefix + name; }
  /// Returns a key that exists once that node's agent has ended, even after a
  /// SIGKILL.
  std::string gone_key(int node_rank) const;
};

/// Finds the agents of the other nodes and agrees with them on node ranks.
///
/// The static backend's node 0 serves the store. With c10d, the agent on the
/// endpoint's host does, or the first of several agents there. `check_stop` is
/// called often and may throw. Throws LaunchError if run ids, numbers of nodes
/// or node ranks do not match (the message names both nodes), if the port is in
/// use, and if a node does not arrive within `join_timeout_s`.
///
/// An agent that was cut off from its job joins it again as another member. It
/// gives the incarnation of the job's store, and joins no other one. Throws
/// store::Refused if the store was started again.
Rendezvous join_rendezvous(const RunOptions& options,
                           const CheckStop& check_stop,
                           const store::Token& incarnation = {});

/// Forms the group of the next attempt in a job whose nodes may join and leave,
/// from the nodes with the ranks `staying` and those that have joined since.
/// Throws LaunchError.
void next_rendezvous(Rendezvous& rendezvous, const RunOptions& options,
                     const std::vector<int>& staying, int attempt,
                     const CheckStop& check_stop);

/// Admits the workers of `round` to the agents' store. Returns MASTER_ADDR and
/// MASTER_PORT: a free port of node 0, which its agent publishes under a key of
/// this attempt, or the port that the user chose. Throws LaunchError.
///
/// They are for programs that do not use Lockstep. In those, rank 0 serves a
/// separate store, as with a torchrun agent that does not share its store.
/// Programs that use Lockstep connect to the agents' store instead.
Endpoint begin_round(Rendezvous& rendezvous, const RunOptions& options,
                     int round);

/// Writes the store's address, and the key that admits the worker in this round
/// only, into the slot of each worker of this node.
void grant_store_access(const Rendezvous& rendezvous,
                        const control::ControlBlock& block, int round);

}  // namespace lockstep::launch
