#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

/// What the agents of a job agree on when the workers of an attempt have ended.
struct SharedEnd {
  Notice notice;                  ///< the first one, which counts for all
  std::vector<Failure> failures;  ///< of all nodes that reported
  bool is_complete = false;       ///< all nodes reported
  std::vector<int> staying;  ///< node ranks that take part in a next attempt
};

/// Publishes why this node ends its workers, and exchanges the failures of all
/// nodes, so that every agent prints the same root cause. Waits up to
/// `timeout_s` for the reports of nodes that are not lost; a lost node's report
/// is missing.
SharedEnd share_failures(Rendezvous& rendezvous, const Notice& notice,
                         std::vector<Failure> own_failures, double timeout_s);

/// Announces that this node leaves a job that goes on without it. Call it
/// before share_failures().
void announce_leaving(Rendezvous& rendezvous);

/// The decision that counts for all agents: the first one that is published. In
/// a job whose nodes may join and leave, it is that of the agent that serves
/// the store.
Decision decide_together(Rendezvous& rendezvous, const Decision& own_decision,
                         bool is_elastic);

/// Signs off from the job. The agent that serves the store waits up to 5 s
/// until all others, except for `lost_node`, have signed off: its end is the
/// end of the store.
void leave(Rendezvous& rendezvous, int lost_node = -1);

}  // namespace lockstep::launch
