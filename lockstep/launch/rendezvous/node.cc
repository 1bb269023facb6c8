#include "lockstep/launch/rendezvous/node.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::launch {
namespace {

// Returns the number of workers on the nodes [0, end): those of `role`, or all
// if it is null.
int count_workers(const std::vector<Node>& nodes, size_t end,
                  const std::string* role = nullptr) {
  int count = 0;
  for (size_t i = 0; i < end; ++i) {
    if (role == nullptr || nodes[i].role == *role) count += nodes[i].workers;
  }
  return count;
}

}  // namespace

std::string Node::text() const {
  return fmt::format("{} (agent {})", host, pid);
}

nlohmann::json to_json(const Node& node) {
  return {{"host", node.host},       {"pid", node.pid},
          {"workers", node.workers}, {"role", node.role},
          {"member", node.member},   {"wanted_rank", node.wanted_rank}};
}

Node node_from_json(const nlohmann::json& json) {
  try {
    Node node{.host = json.at("host").get<std::string>(),
              .pid = json.at("pid").get<int>(),
              .workers = json.at("workers").get<int>(),
              .role = json.at("role").get<std::string>(),
              .member = json.at("member").get<int>(),
              .wanted_rank = json.at("wanted_rank").get<int>()};
    if (node.workers >= 1 && node.workers <= 4096) return node;
  } catch (const nlohmann::json::exception&) {
  }
  throw LaunchError({.code = ErrorCode::kRendezvousFailed,
                     .what = "the job's store holds a malformed description "
                             "of a node",
                     .fix = "is another program using this port?"});
}

const Node& Group::self() const {
  return nodes.at(static_cast<size_t>(node_rank));
}
int Group::first_rank() const {
  return count_workers(nodes, static_cast<size_t>(node_rank));
}
int Group::world_size() const { return count_workers(nodes, nodes.size()); }
int Group::first_role_rank() const {
  return count_workers(nodes, static_cast<size_t>(node_rank), &self().role);
}
int Group::role_world_size() const {
  return count_workers(nodes, nodes.size(), &self().role);
}

}  // namespace lockstep::launch
