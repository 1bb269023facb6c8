#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/rendezvous/deadline.h"
#include "lockstep/launch/rendezvous/job_store.h"
#include "lockstep/launch/rendezvous/node.h"

namespace lockstep::launch {

/// The agents of a job, met.
struct Rendezvous {
  Group group;
  int attempt = 0;  ///< that it is for: not the first for who comes late
  /// Of the agent that serves the store: how many have come and were
  /// considered.
  int known_members = 0;
  JobStore store;
  std::string prefix;         ///< of the job's keys
  bool serves_store = false;  ///< others lose the store when this agent ends

  /// The job's key `name`, whatever the store's prefix is.
  std::string key(const std::string& name) const { return "/" + prefix + name; }
  /// Is there once that node's agent has ended, however it did.
  std::string gone_key(int node_rank) const;
};

/// Meets the agents of the other nodes and agrees on node ranks.
///
/// The static backend's node 0 serves the store; with c10d, the agent whose
/// host is the endpoint, and if several are, the first. `check_stop` is called
/// often and may throw. Throws LaunchError that names both sides when run ids,
/// numbers of nodes or node ranks don't fit together, when the port is taken,
/// and when a node did not come within `join_timeout_s`.
Rendezvous join_rendezvous(const RunOptions& options,
                           const CheckStop& check_stop);

/// Of a job whose nodes come and go: makes the group of the next attempt, of
/// the nodes with these ranks and of those that have come. Throws LaunchError.
void next_rendezvous(Rendezvous& rendezvous, const RunOptions& options,
                     const std::vector<int>& staying, int attempt,
                     const CheckStop& check_stop);

}  // namespace lockstep::launch
