#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/launch/job_store.h"
#include "lockstep/launch/node.h"
#include "lockstep/launch/patience.h"
#include "lockstep/launch/run_options.h"

// The nodes of a job with --nnodes MIN:MAX, which come and go. The agent that
// serves the store decides who is in an attempt; it is in all of them.
namespace lockstep::launch {

/// Of the job's keys: how many nodes have come.
inline constexpr const char* kMembersKey = "members";

/// Says that this node is there; returns the number that it has from then on.
int register_member(JobStore& store, Node self);
/// How many nodes have said so, those that are gone included.
int count_members(JobStore& store);

/// Who takes part in an attempt.
struct Muster {
  int attempt = 0;
  std::vector<int> staying{};  ///< members of the attempt before
  int known = 0;               ///< how many have come and were considered
};

/// By the agent that serves the store: the group of those that stay and those
/// that came since, options.min_nodes to options.nodes; adds these to `known`.
/// Fewer are waited for until join_timeout_s, and with the first attempt more
/// than the fewest for last_call_s. Throws LaunchError if too few come.
void muster(JobStore& store, const RunOptions& options, Muster& muster,
            const CheckStop& check_stop);

/// By the others: the group of `attempt`. Throws LaunchError if `member` is
/// not in it, or if it is not made in time.
Group read_group(JobStore& store, const RunOptions& options, int member,
                 int attempt, const CheckStop& check_stop);

/// The first attempt with `member` in it, for one that has just come. It shows
/// meanwhile that it is still there: who is not will not be taken.
int wait_for_group(JobStore& store, const RunOptions& options, int member,
                   const CheckStop& check_stop);

}  // namespace lockstep::launch
