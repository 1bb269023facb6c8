#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/rendezvous/job_store.h"

// Decides which nodes a job has. Every agent that arrives is a member with a
// number. The agent that serves the store decides which members take part in an
// attempt. It takes part in all attempts. With --nnodes MIN:MAX, nodes may join
// and leave between attempts.
namespace lockstep::launch {

/// Description of a node that its agent sends to the other agents.
struct Node {
  std::string host;
  int pid = 0;      ///< process id of the agent
  int workers = 1;  ///< number of workers on this node
  std::string role;
  int member = 0;        ///< number in the order of arrival
  int wanted_rank = -1;  ///< --node-rank; -1: not set

  std::string text() const;  ///< "host (agent 123)"
};

nlohmann::json to_json(const Node& node);
/// Throws LaunchError if `json` does not describe a node.
Node node_from_json(const nlohmann::json& json);

/// The nodes of a job, in order of node rank, as seen from one of them.
struct Group {
  int node_rank = 0;
  std::vector<Node> nodes;

  const Node& self() const;
  int first_rank() const;  ///< first rank of this node's workers
  int world_size() const;
  int first_role_rank() const;  ///< among the workers of this node's role
  int role_world_size() const;
};

/// A function that is called often while an agent waits for others. It may
/// throw to stop the wait.
using CheckStop = std::function<void()>;

/// The deadline of an agent that waits for others, `limit_s` seconds after its
/// construction.
class Deadline {
 public:
  static constexpr std::chrono::milliseconds kPoll{50};

  Deadline(double limit_s, const CheckStop& check_stop)
      : limit_s_(limit_s), check_stop_(check_stop) {}

  /// Sleeps for kPoll. After the deadline, throws LaunchError with `problem`.
  /// Its `got` says what has arrived so far ("": nothing).
  void pause_or_throw(Problem problem) const;

 private:
  const double limit_s_;
  const CheckStop& check_stop_;
  const Stopwatch watch_;
};

/// Key of the job that counts the members.
inline constexpr const char* kMembersKey = "members";

/// Returns the job's key that exists once the agent of `member` has ended, even
/// after a SIGKILL.
std::string gone_key(int member);

/// Registers this node and sets self.member. Throws LaunchError, which names
/// both nodes, if another node has the same node rank, and InvalidArgument if
/// the node rank is out of range.
void register_member(JobStore& store, const RunOptions& options, Node& self);

/// Returns the number of members that have arrived, including those that have
/// left since.
int count_members(JobStore& store);

/// The nodes that take part in an attempt.
struct Participants {
  int attempt = 0;
  std::vector<Node> nodes{};  ///< in: nodes that stay; out: all, by rank
  int known = 0;              ///< number of members considered so far
};

/// Publishes the group of an attempt, which consists of the nodes that stay and
/// new ones up to the maximum of --nnodes. Only the agent that serves the store
/// calls this. Waits while there are fewer nodes than the minimum. The first
/// attempt then waits last_call_s for further nodes. Members that are gone are
/// skipped. Throws LaunchError if too few nodes arrive in time.
void form_group(JobStore& store, const RunOptions& options,
                Participants& participants, const Deadline& deadline);

/// Returns the group of `attempt`, as the node `self` sees it. Throws CutOff if
/// `self` is not in the group, and LaunchError if the group is not published in
/// time.
Group read_group(JobStore& store, const RunOptions& options, const Node& self,
                 int attempt, const Deadline& deadline);

/// Returns the first attempt whose group includes `self`, which has just
/// arrived. Throws LaunchError if no such attempt starts in time, or if the job
/// is complete, so that no attempt will follow.
int wait_for_group(JobStore& store, const RunOptions& options, const Node& self,
                   const Deadline& deadline);

/// Tells all agents that wait why there will be no group. For jobs that need
/// all their nodes.
void refuse_job(JobStore& store, const std::string& why);

}  // namespace lockstep::launch
