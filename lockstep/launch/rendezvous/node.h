#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

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

}  // namespace lockstep::launch
