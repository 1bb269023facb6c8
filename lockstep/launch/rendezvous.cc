#include "lockstep/launch/rendezvous.h"

#include <algorithm>
#include <optional>
#include <random>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/host_name.h"
#include "lockstep/comm/store/refusal_log.h"
#include "lockstep/comm/store/secret_file.h"
#include "lockstep/launch/master.h"
#include "lockstep/launch/membership.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr const char* kJobKey = "lockstep/job";

// Under its job's prefix, so that nothing of another job is taken for ours.
std::string prefix_of(const std::string& run_id) {
  return "lockstep/run/" + run_id + "/";
}

Endpoint endpoint_of(const RunOptions& options) {
  Endpoint endpoint{options.master_addr, options.master_port};
  if (is_master_port_for_workers(options)) {
    // Only this agent and its workers come to the store.
    endpoint = {"127.0.0.1", 0};
  } else if (!options.endpoint.empty()) {
    endpoint = parse_endpoint("--rdzv-endpoint", options.endpoint, 0);
  } else if (options.backend == Backend::kC10d) {
    endpoint = {"localhost", 0};
  }
  if (options.nodes > 1 && endpoint.port == 0) {
    throw LaunchError(
        {.what = "several nodes need a port that all of them know",
         .expected = options.backend == Backend::kStatic
                         ? "--master-addr and --master-port"
                         : "--rdzv-endpoint HOST:PORT",
         .got = "no port"});
  }
  return endpoint;
}

// The secret of one node's job is in its agent alone: others get theirs from
// a file, or not at all.
store::JobSecret secret_of(const RunOptions& options,
                           const Endpoint& endpoint) {
  const store::SecretSource source{.file = options.secret_file,
                                   .fd = options.secret_fd,
                                   .is_none = options.has_no_secret};
  const bool has_source = !source.file.empty() || source.fd >= 0;
  if (options.nodes == 1 && !has_source) return store::JobSecret::random();
  return store::shared_secret(source, endpoint.host);
}

// As the option has it.
std::string nnodes(int least, int most) {
  return least == most ? std::to_string(most)
                       : fmt::format("{}:{}", least, most);
}

json parse(const std::string& text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// One agent on its way to the meeting.
class Joiner {
 public:
  Joiner(const RunOptions& options, const CheckStop& check_stop)
      : options_(options),
        check_stop_(check_stop),
        endpoint_(endpoint_of(options)),
        patience_(options.join_timeout_s, check_stop) {
    self_.host = options.local_addr.empty() ? host_name() : options.local_addr;
    self_.pid = ::getpid();
    self_.workers = options.workers;
    self_.role = options.role;
  }

  Meeting join() {
    check_master_port(options_);
    const JobStoreOptions options{.run_id = options_.run_id,
                                  .secret = secret_of(options_, endpoint_),
                                  .name = self_.text()};
    JobStore store = reach_store(options);
    check_job(store);
    store.set_prefix(prefix_of(options_.run_id));
    if (options_.is_elastic()) return join_members(std::move(store));
    const int arrival = register_self(store);
    if (is_server_) assign(store);
    return {.group = read_assignment(store, arrival),
            .attempt = 0,
            .known_members = 0,
            .store = std::move(store),
            .prefix = prefix_of(options_.run_id),
            .serves_store = is_server_};
  }

 private:
  Meeting join_members(JobStore store) {
    const int member = register_member(store, self_);
    Muster first{.attempt = 0, .staying = {member}, .known = 0};
    if (is_server_) {
      muster(store, options_, first, check_stop_);
    } else {
      first.attempt = wait_for_group(store, options_, member, check_stop_);
    }
    Group group =
        read_group(store, options_, member, first.attempt, check_stop_);
    return {.group = std::move(group),
            .attempt = first.attempt,
            .known_members = first.known,
            .store = std::move(store),
            .prefix = prefix_of(options_.run_id),
            .serves_store = is_server_};
  }

  int least_nodes() const {
    return options_.is_elastic() ? options_.min_nodes : options_.nodes;
  }

  bool should_serve() const {
    if (options_.nodes == 1) return true;
    if (options_.backend == Backend::kStatic) {
      return options_.node_rank.value_or(0) == 0;
    }
    return options_.is_host.value_or(is_this_host(endpoint_.host));
  }

  JobStore reach_store(const JobStoreOptions& options) {
    if (should_serve()) {
      auto listeners = listen_at(endpoint_, options_.interface);
      if (!listeners.empty()) {
        is_server_ = true;
        return {options, endpoint_, std::move(listeners)};
      }
      const bool may_join =
          options_.nodes > 1 && options_.backend == Backend::kC10d;
      if (!may_join) throw_port_in_use(options_, endpoint_);
    }
    for (;;) {
      try {
        return {options, endpoint_};
      } catch (const store::Unreachable& error) {
        patience_.pause(
            {.what = "nobody listens at " + endpoint_.text(),
             .expected = "node 0's agent at this address",
             .fix = "start it, or check --master-addr, --master-port and "
                    "--rdzv-endpoint"});
      } catch (const store::Refused& error) {
        if (error.admission() != store::Admission::kOtherJob) throw;
        throw LaunchError(
            {.what = "another job is at " + endpoint_.text(),
             .expected = fmt::format("run id '{}', ours on {}", options_.run_id,
                                     self_.text()),
             .got = store::reason_of(error),
             .fix = "give both --rdzv-id alike, or another port"});
      }
    }
  }

  // All must expect the same number of nodes.
  void check_job(JobStore& store) {
    const json mine = {{"nodes", options_.nodes},
                       {"min_nodes", least_nodes()},
                       {"host", self_.host},
                       {"pid", self_.pid}};
    if (is_server_) store.set(kJobKey, mine.dump());
    std::optional<std::string> text;
    while (!(text = store.get(kJobKey))) {
      patience_.pause(
          {.what = "the store at " + endpoint_.text() + " tells no job"});
    }
    const json theirs = parse(*text);
    const auto other =
        fmt::format("{} (agent {})", theirs.value("host", std::string("?")),
                    theirs.value("pid", 0));
    const std::string nodes =
        nnodes(theirs.value("min_nodes", 0), theirs.value("nodes", 0));
    const std::string ours = nnodes(least_nodes(), options_.nodes);
    if (nodes == ours) return;
    const Problem problem{
        .what = "the nodes don't agree on --nnodes",
        .expected = fmt::format("{}, as {} says", nodes, other),
        .got = fmt::format("{} on {}", ours, self_.text()),
        .fix = "give all agents the same --nnodes"};
    // Waiting for the right number of nodes would be in vain.
    store.claim(prefix_of(options_.run_id) + "refused",
                LaunchError(problem).what());
    throw LaunchError(problem);
  }

  // Returns the place in the order of arrival.
  int register_self(JobStore& store) {
    json mine = to_json(self_);
    mine["node_rank"] = -1;
    mine["token"] = std::random_device{}();  // hosts and pids may be alike
    const bool has_rank =
        options_.node_rank || options_.backend == Backend::kStatic;
    if (has_rank) {
      const int rank = options_.node_rank.value_or(0);
      mine["node_rank"] = rank;
      claim_rank(store, rank, mine);
    }
    const auto arrival = static_cast<int>(store.add("arrivals", 1)) - 1;
    if (arrival >= options_.nodes) {
      throw LaunchError({.what = fmt::format("job '{}' at {} is complete",
                                             options_.run_id, endpoint_.text()),
                         .expected = fmt::format("{} nodes", options_.nodes),
                         .got = fmt::format("one more: {}", self_.text()),
                         .fix = "give each job its own --rdzv-id and port"});
    }
    mine["arrival"] = arrival;
    store.set(fmt::format("arrival/{}", arrival), mine.dump());
    return arrival;
  }

  void claim_rank(JobStore& store, int rank, const json& mine) {
    if (rank < 0 || rank >= options_.nodes) {
      throw InvalidArgument("launch", {.what = "can't use --node-rank",
                                       .expected = fmt::format(
                                           "0 to {} with --nnodes {}",
                                           options_.nodes - 1, options_.nodes),
                                       .got = std::to_string(rank)});
    }
    const json holder =
        parse(store.claim(fmt::format("node/{}", rank), mine.dump()));
    if (holder == mine) return;
    throw LaunchError(
        {.what = fmt::format("two agents say they are node {}", rank),
         .expected = "each --node-rank once",
         .got = fmt::format("{} and {}", node_from_json(holder).text(),
                            self_.text()),
         .fix = "number the nodes from 0"});
  }

  // The server waits for all, and gives those without a rank the free ones.
  void assign(JobStore& store) {
    std::vector<json> arrivals;
    while (static_cast<int>(arrivals.size()) < options_.nodes) {
      if (const auto text =
              store.get(fmt::format("arrival/{}", arrivals.size()))) {
        arrivals.push_back(parse(*text));
        continue;
      }
      check_refused(store);
      std::string came;
      for (const auto& node : arrivals) {
        came += (came.empty() ? "" : ", ") + node_from_json(node).text();
      }
      patience_.pause(
          {.what = "not all nodes came",
           .expected = fmt::format("{} nodes", options_.nodes),
           .got = fmt::format("{}: {}", arrivals.size(), came),
           .fix = "start the other agents; they need the same --nnodes, "
                  "--rdzv-id and address"});
    }
    std::vector<json> nodes(arrivals.size());
    for (const auto& node : arrivals) {
      const int rank = node.value("node_rank", -1);
      if (rank >= 0) nodes.at(static_cast<size_t>(rank)) = node;
    }
    auto free = nodes.begin();
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (arrivals[i].value("node_rank", -1) >= 0) continue;
      free = std::find(free, nodes.end(), json());
      *free = arrivals[i];
    }
    json assignment = json::array();
    for (const auto& node : nodes) assignment.push_back(node);
    store.set("assignment", assignment.dump());
  }

  Group read_assignment(JobStore& store, int arrival) {
    std::optional<std::string> text;
    while (!(text = store.get("assignment"))) {
      check_refused(store);
      patience_.pause(
          {.what = "the other nodes did not come",
           .expected = fmt::format("{} nodes", options_.nodes),
           .got = fmt::format("this one, {}. to arrive", arrival + 1),
           .fix = "start the other agents; they need the same --nnodes and "
                  "--rdzv-id"});
    }
    Group group;
    group.node_rank = -1;
    for (const auto& entry : parse(*text)) {
      if (entry.value("arrival", -1) == arrival) {
        group.node_rank = static_cast<int>(group.nodes.size());
      }
      group.nodes.push_back(node_from_json(entry));
    }
    if (group.node_rank < 0) {
      throw LaunchError({.what = "the job began without this agent",
                         .got = self_.text(),
                         .fix = "start all agents again"});
    }
    return group;
  }

  void check_refused(JobStore& store) {
    if (const auto reason = store.get("refused")) {
      throw LaunchError(
          {.what = "a node was refused: " + reason->substr(0, 1000)});
    }
  }

  const RunOptions& options_;
  const CheckStop& check_stop_;
  Endpoint endpoint_;
  Node self_;
  bool is_server_ = false;
  const Patience patience_;
};

}  // namespace

Meeting meet(const RunOptions& options, const CheckStop& check_stop) {
  return Joiner(options, check_stop).join();
}

void meet_again(Meeting& meeting, const RunOptions& options,
                const std::vector<int>& staying, int attempt,
                const CheckStop& check_stop) {
  meeting.store.set_prefix(meeting.prefix);
  const int member = meeting.group.self().member;
  if (meeting.serves_store) {
    Muster next{
        .attempt = attempt, .staying = {}, .known = meeting.known_members};
    for (const int rank : staying) {
      next.staying.push_back(
          meeting.group.nodes.at(static_cast<size_t>(rank)).member);
    }
    muster(meeting.store, options, next, check_stop);
    meeting.known_members = next.known;
  }
  meeting.group =
      read_group(meeting.store, options, member, attempt, check_stop);
  meeting.attempt = attempt;
}

}  // namespace lockstep::launch
