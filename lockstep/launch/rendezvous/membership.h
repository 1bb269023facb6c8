#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/rendezvous/deadline.h"
#include "lockstep/launch/rendezvous/job_store.h"
#include "lockstep/launch/rendezvous/node.h"

// Which nodes a job has. Every agent that comes is a member, by a number of its
// own; the one that serves the store decides who is in an attempt, and is in
// all of them. With --nnodes MIN:MAX nodes come and go between attempts.
namespace lockstep::launch {

/// Of the job's keys: how many members have come.
inline constexpr const char* kMembersKey = "members";

/// Of the job's keys: is there once the agent `member` has ended, however it
/// did.
std::string gone_key(int member);

/// Says that this node is there, and sets self.member. Throws LaunchError
/// naming both if another one has its node rank, and InvalidArgument for one
/// that can't be.
void register_member(JobStore& store, const RunOptions& options, Node& self);

/// How many have come, those that are gone included.
int count_members(JobStore& store);

/// Who takes part in an attempt.
struct Participants {
  int attempt = 0;
  std::vector<Node> nodes{};  ///< of the attempt before, then of this one
  int known = 0;              ///< how many have come and were considered
};

/// By the agent that serves the store: the group of the nodes that stay and
/// those that came since, as many as --nnodes allows; adds these to `known`.
/// Fewer are waited for, and with the first attempt more than the fewest for
/// last_call_s. One that is gone is not taken. Throws LaunchError if too few
/// come.
void form_group(JobStore& store, const RunOptions& options,
                Participants& participants, const Deadline& deadline);

/// The group of `attempt`, as the node `self` sees it. Throws LaunchError if it
/// is not in it, or if it is not made in time.
Group read_group(JobStore& store, const RunOptions& options, const Node& self,
                 int attempt, const Deadline& deadline);

/// The first attempt with `self` in it, for one that has just come. Throws
/// LaunchError if none is made in time, or if none will be: the job has its
/// nodes.
int wait_for_group(JobStore& store, const RunOptions& options, const Node& self,
                   const Deadline& deadline);

/// Tells all that wait for the group of a job that needs all its nodes why
/// there will be none.
void refuse_job(JobStore& store, const std::string& why);

}  // namespace lockstep::launch
