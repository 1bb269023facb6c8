#pragma once

#include <vector>

#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

/// State that the agents of a job share after the workers of an attempt have
/// ended.
struct SharedEnd {
  Notice notice;  ///< the first notice, which counts for all nodes
  std::vector<Failure> failures;  ///< failures of all nodes that reported
  bool is_complete = false;       ///< all nodes reported
  std::vector<int> staying;       ///< ranks of nodes that join a next attempt
};

/// Publishes why this node ends its workers, and exchanges the failures of all
/// nodes, so that every agent prints the same root cause. Waits up to
/// `timeout_s` for the reports of nodes that are not lost. There is no report
/// from a lost node.
SharedEnd share_failures(Rendezvous& rendezvous, const Notice& notice,
                         std::vector<Failure> own_failures, double timeout_s);

/// Announces that this node leaves a job that goes on without it. Call it
/// before share_failures().
void announce_leaving(Rendezvous& rendezvous);

/// Returns the decision that all agents follow: the first one that is
/// published. In a job whose nodes may join and leave, it is the decision of
/// the agent that serves the store.
Decision decide_together(Rendezvous& rendezvous, const Decision& own_decision,
                         bool is_elastic);

/// Signs off from the job. The agent that serves the store waits for all other
/// nodes except `lost_node` to sign off, because the store ends with it. It
/// does not wait for nodes that are gone, nor longer than agents try to reach
/// it.
void leave(Rendezvous& rendezvous, int lost_node = -1);

}  // namespace lockstep::launch
