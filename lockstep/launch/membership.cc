#include "lockstep/launch/membership.h"

#include <algorithm>
#include <optional>
#include <poll.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

// It does so at each pause of its patience.
constexpr double kShowsItselfS = 2;
constexpr const char* kLatest = "latest group";

std::string member_key(int member) { return fmt::format("member/{}", member); }
std::string group_key(int attempt) { return fmt::format("group/{}", attempt); }

json parse(const std::string& text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::optional<Group> find_group(JobStore& store, int attempt, int member) {
  const auto text = store.get(group_key(attempt));
  if (!text) return std::nullopt;
  Group group;
  group.node_rank = -1;
  for (const json& entry : parse(*text)) {
    const Node node = node_from_json(entry);
    if (node.member == member) {
      group.node_rank = static_cast<int>(group.nodes.size());
    }
    group.nodes.push_back(node);
  }
  return group;
}

std::string waits_key(int member) { return fmt::format("waits/{}", member); }

// Whether it shows that it waits, or begins to.
bool is_waiting(JobStore& store, int member) {
  const auto before = store.get(waits_key(member), kShowsItselfS);
  const Stopwatch watch;
  while (before && watch.seconds() < kShowsItselfS) {
    if (store.get(waits_key(member)) != before) return true;
    ::poll(nullptr, 0, Patience::kPollMs);
  }
  return false;
}

// What is wrong when too few nodes are there; `got` is what came.
Problem too_few(const RunOptions& options, const std::string& what,
                const std::string& got) {
  return {.what = what,
          .expected =
              fmt::format("{} to {} nodes", options.min_nodes, options.nodes),
          .got = got,
          .fix =
              "start other agents; they need the same --nnodes, --rdzv-id "
              "and address"};
}

}  // namespace

int register_member(JobStore& store, Node self) {
  self.member = static_cast<int>(store.add(kMembersKey, 1)) - 1;
  store.set(member_key(self.member), to_json(self).dump());
  return self.member;
}

int count_members(JobStore& store) {
  return static_cast<int>(store.add(kMembersKey, 0));
}

void muster(JobStore& store, const RunOptions& options, Muster& muster,
            const CheckStop& check_stop) {
  const Patience patience(options.join_timeout_s, check_stop);
  std::vector<int> members = muster.staying;
  std::optional<Stopwatch> enough;
  for (;;) {
    const int count = count_members(store);
    const auto most = static_cast<size_t>(options.nodes);
    while (muster.known < count && members.size() < most) {
      const int member = muster.known++;
      const auto& staying = muster.staying;
      const bool is_in =
          std::find(staying.begin(), staying.end(), member) != staying.end();
      if (!is_in && is_waiting(store, member)) members.push_back(member);
    }
    const auto nodes = static_cast<int>(members.size());
    if (nodes >= options.min_nodes) {
      if (!enough) enough.emplace();
      // Who is lost should not cost those that are left a long wait.
      const bool is_late =
          muster.attempt > 0 || enough->seconds() > options.last_call_s;
      if (nodes == options.nodes || is_late) break;
    }
    patience.pause(
        too_few(options, "too few nodes came", std::to_string(nodes)));
  }
  std::sort(members.begin(), members.end());
  json entries = json::array();
  for (const int member : members) {
    std::optional<std::string> text;
    while (!(text = store.get(member_key(member)))) {
      patience.pause(too_few(options, "a node came and said nothing of itself",
                             "nothing"));
    }
    entries.push_back(to_json(node_from_json(parse(*text))));
  }
  store.set(group_key(muster.attempt), entries.dump());
  store.set(kLatest, std::to_string(muster.attempt));
}

Group read_group(JobStore& store, const RunOptions& options, int member,
                 int attempt, const CheckStop& check_stop) {
  const Patience patience(options.join_timeout_s, check_stop);
  for (;;) {
    const auto group = find_group(store, attempt, member);
    if (group && group->node_rank >= 0) return *group;
    if (group) {
      throw LaunchError({.what = "the job went on without this node",
                         .got = "no word from it in time, as node 0 had it",
                         .fix = "start its agent again: it may come back"});
    }
    patience.pause(too_few(options, "node 0 made no group", "none"));
  }
}

int wait_for_group(JobStore& store, const RunOptions& options, int member,
                   const CheckStop& check_stop) {
  const Patience patience(options.join_timeout_s, check_stop);
  for (int64_t beats = 0;; ++beats) {
    store.set(waits_key(member), std::to_string(beats));
    if (const auto latest = store.get(kLatest)) {
      const int attempt = std::atoi(latest->c_str());
      const auto group = find_group(store, attempt, member);
      if (group && group->node_rank >= 0) return attempt;
    }
    patience.pause(too_few(options, "the job took no other node",
                           fmt::format("this one, {}. to come", member + 1)));
  }
}

}  // namespace lockstep::launch
