#include "lockstep/launch/rendezvous/membership.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr const char* kLatest = "latest group";
constexpr const char* kRefused = "refused";

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

std::string member_key(int member) { return fmt::format("member/{}", member); }
std::string group_key(int attempt) { return fmt::format("group/{}", attempt); }

std::string number_of_nodes(const RunOptions& options) {
  if (!options.is_elastic()) return counted(options.nodes, "node");
  return fmt::format("{} to {}", options.min_nodes,
                     counted(options.nodes, "node"));
}

// Returns the problem that too few nodes arrived. `got` lists those that did.
Problem too_few(const RunOptions& options, const std::string& what,
                const std::string& got) {
  return {.code = ErrorCode::kRendezvousFailed,
          .what = what,
          .expected = number_of_nodes(options),
          .got = got,
          .fix =
              "start the other agents; they need the same --nnodes, "
              "--rdzv-id and address"};
}

bool is_gone(JobStore& store, int member) {
  return store.has_all({gone_key(member)});
}

void claim_rank(JobStore& store, const RunOptions& options, const Node& self) {
  if (self.wanted_rank < 0 || self.wanted_rank >= options.nodes) {
    throw InvalidArgument(
        "launch", {.code = ErrorCode::kBadOption,
                   .what = "can't use --node-rank",
                   .expected = fmt::format("0 to {} with --nnodes {}",
                                           options.nodes - 1, options.nodes),
                   .got = std::to_string(self.wanted_rank)});
  }
  const std::string own_entry = to_json(self).dump();
  // A claimed key is never released. If its holder is gone, the next key of the
  // same rank can be claimed.
  for (int claim = 0;; ++claim) {
    const Node holder = node_from_json(try_parse_json(store.claim(
        fmt::format("node/{}/{}", self.wanted_rank, claim), own_entry)));
    if (holder.member == self.member) return;
    if (is_gone(store, holder.member)) continue;
    throw LaunchError({.code = ErrorCode::kRendezvousFailed,
                       .what = fmt::format("two agents say they are node {}",
                                           self.wanted_rank),
                       .expected = "each --node-rank once",
                       .got = holder.text() + " and " + self.text(),
                       .fix = "number the nodes from 0"});
  }
}

// In a job that needs all its nodes, a node that was refused ends the job.
void check_refused(JobStore& store, const RunOptions& options) {
  constexpr size_t kMaxShown = 1000;
  if (options.is_elastic()) return;
  if (const auto reason = store.get(kRefused)) {
    throw LaunchError(
        {.code = ErrorCode::kRendezvousFailed,
         .what = "a node was refused: " + reason->substr(0, kMaxShown)});
  }
}

// Returns the node that a member published. Returns nullopt if the member is
// gone, perhaps before it published anything: it takes its number first and
// describes itself a few requests later.
std::optional<Node> find_member(JobStore& store, int member) {
  if (is_gone(store, member)) return std::nullopt;
  const auto text = store.get_unless(gone_key(member), member_key(member),
                                     store.keep_alive_s());
  if (!text) return std::nullopt;
  return node_from_json(try_parse_json(*text));
}

bool is_among(const std::vector<Node>& nodes, int member) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const Node& node) { return node.member == member; });
}

// Adds the members that have arrived since, in the order of arrival.
void add_new_nodes(JobStore& store, const RunOptions& options,
                   Participants& participants) {
  const int count = count_members(store);
  const auto most = static_cast<size_t>(options.nodes);
  for (; participants.known < count && participants.nodes.size() < most;
       ++participants.known) {
    if (is_among(participants.nodes, participants.known)) continue;
    const auto node = find_member(store, participants.known);
    if (node) participants.nodes.push_back(*node);
  }
}

// Assigns node ranks. Nodes that ask for a rank get it. The other nodes get the
// free ranks in the order of their arrival.
std::vector<Node> assign_node_ranks(std::vector<Node> nodes) {
  std::sort(nodes.begin(), nodes.end(),
            [](const Node& a, const Node& b) { return a.member < b.member; });
  std::vector<std::optional<Node>> ranks(nodes.size());
  std::vector<Node> unranked;
  for (Node& node : nodes) {
    const auto wanted = static_cast<size_t>(node.wanted_rank);
    const bool is_free =
        node.wanted_rank >= 0 && wanted < ranks.size() && !ranks[wanted];
    if (is_free) {
      ranks[wanted] = std::move(node);
    } else {
      unranked.push_back(std::move(node));
    }
  }
  auto next_unranked = unranked.begin();
  std::vector<Node> ordered;
  for (auto& rank : ranks) {
    ordered.push_back(std::move(rank ? *rank : *next_unranked++));
  }
  return ordered;
}

std::string text_of(const std::vector<Node>& nodes) {
  std::string text = std::to_string(nodes.size());
  const char* before = ": ";
  for (const Node& node : nodes) {
    text += std::exchange(before, ", ") + node.text();
  }
  return text;
}

std::optional<Group> find_group(JobStore& store, int attempt, int member) {
  const auto text = store.get(group_key(attempt));
  if (!text) return std::nullopt;
  Group group;
  group.node_rank = -1;
  for (const json& entry : try_parse_json(*text)) {
    const Node node = node_from_json(entry);
    if (node.member == member) {
      group.node_rank = static_cast<int>(group.nodes.size());
    }
    group.nodes.push_back(node);
  }
  return group;
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

void Deadline::pause_or_throw(Problem problem) const {
  check_stop_();
  if (watch_.seconds() > limit_s_) {
    problem.got =
        fmt::format("{} after {:g} s (--rdzv-conf join_timeout=...)",
                    problem.got.empty() ? "none" : problem.got, limit_s_);
    throw LaunchError(problem);
  }
  std::this_thread::sleep_for(kPoll);
}

std::string gone_key(int member) { return fmt::format("gone/{}", member); }

void register_member(JobStore& store, const RunOptions& options, Node& self) {
  // In an elastic job, node ranks change from attempt to attempt.
  const bool wants_rank =
      !options.is_elastic() &&
      (options.node_rank || options.backend == Backend::kStatic);
  if (wants_rank) self.wanted_rank = options.node_rank.value_or(0);
  self.member = static_cast<int>(store.add(kMembersKey, 1)) - 1;
  store.set_last_will(gone_key(self.member));
  if (wants_rank) claim_rank(store, options, self);
  store.set(member_key(self.member), to_json(self).dump());
}

int count_members(JobStore& store) {
  return static_cast<int>(store.add(kMembersKey, 0));
}

void form_group(JobStore& store, const RunOptions& options,
                Participants& participants, const Deadline& deadline) {
  const auto staying = static_cast<int64_t>(participants.nodes.size());
  std::optional<Stopwatch> enough;
  for (;;) {
    // Only new nodes are checked, because those that stay have just reported.
    const auto lost = std::remove_if(
        participants.nodes.begin() + staying, participants.nodes.end(),
        [&](const Node& node) { return is_gone(store, node.member); });
    participants.nodes.erase(lost, participants.nodes.end());
    add_new_nodes(store, options, participants);
    const auto nodes = static_cast<int>(participants.nodes.size());
    if (nodes >= options.fewest_nodes()) {
      if (!enough) enough.emplace();
      // After a loss, the remaining nodes do not wait for a replacement.
      const bool is_late =
          participants.attempt > 0 || enough->seconds() > options.last_call_s;
      if (nodes == options.nodes || is_late) break;
    } else {
      enough.reset();
    }
    check_refused(store, options);
    deadline.pause_or_throw(
        too_few(options, "too few nodes joined", text_of(participants.nodes)));
  }
  participants.nodes = assign_node_ranks(std::move(participants.nodes));
  json entries = json::array();
  for (const Node& node : participants.nodes) entries.push_back(to_json(node));
  store.set(group_key(participants.attempt), entries.dump());
  store.set(kLatest, std::to_string(participants.attempt));
}

Group read_group(JobStore& store, const RunOptions& options, const Node& self,
                 int attempt, const Deadline& deadline) {
  for (;;) {
    const auto group = find_group(store, attempt, self.member);
    if (group && group->node_rank >= 0) return *group;
    if (group) {
      throw CutOff({.code = ErrorCode::kRendezvousFailed,
                    .what = "the job continued without this node",
                    .got = "node 0 heard nothing from it in time",
                    .fix = "start its agent again to let it rejoin"});
    }
    deadline.pause_or_throw(
        too_few(options, "node 0 formed no group of nodes", "none"));
  }
}

int wait_for_group(JobStore& store, const RunOptions& options, const Node& self,
                   const Deadline& deadline) {
  for (;;) {
    if (const auto latest = store.get(kLatest)) {
      const int attempt = std::atoi(latest->c_str());
      const auto group = find_group(store, attempt, self.member);
      if (group && group->node_rank >= 0) return attempt;
      if (group && !options.is_elastic()) {
        throw LaunchError(
            {.code = ErrorCode::kRendezvousFailed,
             .what = fmt::format("job '{}' is complete", options.run_id),
             .expected = number_of_nodes(options),
             .got = "one more: " + self.text(),
             .fix = "give each job its own --rdzv-id and port"});
      }
    }
    check_refused(store, options);
    deadline.pause_or_throw(
        too_few(options, "this node was not admitted to the job",
                fmt::format("only {}, which arrived as number {}", self.text(),
                            self.member + 1)));
  }
}

void refuse_job(JobStore& store, const std::string& why) {
  store.claim(kRefused, why);
}

}  // namespace lockstep::launch
