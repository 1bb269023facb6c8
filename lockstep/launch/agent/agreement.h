#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

/// What the agents of a job agree on when its workers have ended.
struct SharedEnd {
  Notice notice;                  ///< that came first
  std::vector<Failure> failures;  ///< of all nodes that were heard
  bool is_complete = false;       ///< all were
  std::vector<int> staying;       ///< ranks of the nodes that go on if we do
};

/// Says why this node ends its workers, and gives all agents the failures of
/// all nodes, so that each prints the same root cause. Waits up to `timeout_s`
/// for the others that are not lost; what a lost node would have said is
/// missing.
SharedEnd share_failures(Rendezvous& rendezvous, const Notice& notice,
                         std::vector<Failure> own, double timeout_s);

/// Says that this node leaves the job, which goes on without it. Before its
/// failures are shared.
void announce_leaving(Rendezvous& rendezvous);

/// The decision of the agent that decides first is everyone's; where nodes come
/// and go, that of the agent that serves the store.
Decision decide_together(Rendezvous& rendezvous, const Decision& own,
                         bool is_elastic);

/// Says goodbye. The agent that serves the store waits, shortly, for all others
/// but `lost_node` to have done so.
void leave(Rendezvous& rendezvous, int lost_node = -1);

}  // namespace lockstep::launch
