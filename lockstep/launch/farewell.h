#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/failure.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::launch {

/// Says `why` this node ends the job, and gives all agents the failures of all
/// nodes, so that each prints the same root cause. Waits up to `patience_s` for
/// the others; what a lost node would have said is missing.
std::vector<Failure> share_failures(Meeting& meeting, const std::string& why,
                                    std::vector<Failure> own,
                                    double patience_s);

/// Says goodbye. The agent that serves the store waits, shortly, for all
/// others to have done so.
void leave(Meeting& meeting);

}  // namespace lockstep::launch
