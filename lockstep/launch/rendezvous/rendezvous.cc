#include "lockstep/launch/rendezvous/rendezvous.h"

#include <optional>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/json.h"
#include "lockstep/launch/rendezvous/master.h"
#include "lockstep/launch/rendezvous/membership.h"
#include "lockstep/store/secret_file.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr const char* kJobKey = "lockstep/job";

// All keys of a job have a prefix, so that a job does not read the keys of
// another job.
std::string prefix_of(const std::string& run_id) {
  return "lockstep/run/" + run_id + "/";
}

Endpoint endpoint_of(const RunOptions& options) {
  Endpoint endpoint{options.master_addr, options.master_port};
  if (is_master_port_for_workers(options)) {
    // Only this agent and its workers use the store.
    endpoint = {store::loopback_host(), 0};
  } else if (!options.endpoint.empty()) {
    endpoint = parse_endpoint("--rdzv-endpoint", options.endpoint, 0);
  } else if (options.backend == Backend::kC10d) {
    endpoint = {store::loopback_host(), 0};
  }
  if (options.nodes > 1 && endpoint.port == 0) {
    throw LaunchError(
        {.code = ErrorCode::kBadOption,
         .what = "several nodes need a port that all of them know",
         .expected = options.backend == Backend::kStatic
                         ? "--master-addr and --master-port"
                         : "--rdzv-endpoint HOST:PORT",
         .got = "no port"});
  }
  return endpoint;
}

// In a job with one node, only the agent has the secret. Several agents must
// get it from a file, or use none.
store::JobSecret secret_of(const RunOptions& options,
                           const Endpoint& endpoint) {
  const store::SecretSource source{.file = options.secret_file,
                                   .fd = options.secret_fd,
                                   .is_none = options.has_no_secret};
  const bool has_source = !source.file.empty() || source.fd >= 0;
  if (options.nodes == 1 && !has_source) return store::JobSecret::random();
  return store::shared_secret(source, endpoint.host);
}

// Returns the number of nodes in the format of --nnodes.
std::string nnodes(int least, int most) {
  return least == most ? std::to_string(most)
                       : fmt::format("{}:{}", least, most);
}

// Joins the rendezvous for one agent.
class Joiner {
 public:
  Joiner(const RunOptions& options, const CheckStop& check_stop)
      : options_(options),
        endpoint_(endpoint_of(options)),
        deadline_(options.join_timeout_s, check_stop) {
    self_.host = options.local_addr.empty() ? host_name() : options.local_addr;
    self_.pid = ::getpid();
    self_.workers = options.workers;
    self_.role = options.role;
  }

  Rendezvous join() {
    check_master_port(options_);
    const JobStoreOptions options{.run_id = options_.run_id,
                                  .secret = secret_of(options_, endpoint_),
                                  .name = self_.text()};
    JobStore store = reach_store(options);
    check_job(store);
    store.set_prefix(prefix_of(options_.run_id));
    register_member(store, options_, self_);
    Participants first{.attempt = 0, .nodes = {self_}, .known = 0};
    if (is_server_) {
      form_group(store, options_, first, deadline_);
    } else {
      first.attempt = wait_for_group(store, options_, self_, deadline_);
    }
    return {
        .group = read_group(store, options_, self_, first.attempt, deadline_),
        .attempt = first.attempt,
        .known_members = first.known,
        .store = std::move(store),
        .prefix = prefix_of(options_.run_id),
        .serves_store = is_server_};
  }

 private:
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
        deadline_.pause_or_throw(
            {.code = ErrorCode::kStoreUnreachable,
             .what = "nobody listens at " + endpoint_.text(),
             .expected = "node 0's agent at this address",
             .got = text_of(error),
             .fix = "start it, or check --master-addr, --master-port and "
                    "--rdzv-endpoint"});
      } catch (const store::Refused& error) {
        if (error.admission() != store::Admission::kOtherJob) throw;
        throw LaunchError(
            {.code = ErrorCode::kStoreRefused,
             .what = "another job is at " + endpoint_.text(),
             .expected = fmt::format("run id '{}', ours on {}", options_.run_id,
                                     self_.text()),
             .got = text_of(error),
             .fix = "give both --rdzv-id alike, or another port"});
      }
    }
  }

  // Checks that all agents expect the same number of nodes.
  void check_job(JobStore& store) {
    const json own_job = {{"nodes", options_.nodes},
                          {"min_nodes", options_.fewest_nodes()},
                          {"host", self_.host},
                          {"pid", self_.pid}};
    if (is_server_) store.set(kJobKey, own_job.dump());
    std::optional<std::string> text;
    while (!(text = store.get(kJobKey))) {
      deadline_.pause_or_throw({.code = ErrorCode::kStoreProtocol,
                                .what = "the store at " + endpoint_.text() +
                                        " does not say which job it serves"});
    }
    const json served_job = try_parse_json(*text);
    const auto server =
        fmt::format("{} (agent {})", served_job.value("host", std::string("?")),
                    served_job.value("pid", 0));
    const std::string nodes =
        nnodes(served_job.value("min_nodes", 0), served_job.value("nodes", 0));
    const std::string own_nodes =
        nnodes(options_.fewest_nodes(), options_.nodes);
    if (nodes == own_nodes) return;
    const Problem problem{
        .code = ErrorCode::kRendezvousFailed,
        .what = "the nodes don't agree on --nnodes",
        .expected = fmt::format("{}, as {} says", nodes, server),
        .got = fmt::format("{} on {}", own_nodes, self_.text()),
        .fix = "give all agents the same --nnodes"};
    // The other agents would wait forever, so they are told why the job is
    // refused.
    store.set_prefix(prefix_of(options_.run_id));
    refuse_job(store, text_of(LaunchError(problem)));
    throw LaunchError(problem);
  }

  const RunOptions& options_;
  Endpoint endpoint_;
  Node self_;
  bool is_server_ = false;
  const Deadline deadline_;
};

}  // namespace

Rendezvous join_rendezvous(const RunOptions& options,
                           const CheckStop& check_stop) {
  return Joiner(options, check_stop).join();
}

std::string Rendezvous::gone_key(int node_rank) const {
  const Node& node = group.nodes.at(static_cast<size_t>(node_rank));
  return key(launch::gone_key(node.member));
}

void next_rendezvous(Rendezvous& rendezvous, const RunOptions& options,
                     const std::vector<int>& staying, int attempt,
                     const CheckStop& check_stop) {
  const Deadline deadline(options.join_timeout_s, check_stop);
  rendezvous.store.set_prefix(rendezvous.prefix);
  const Node self = rendezvous.group.self();
  if (rendezvous.serves_store) {
    Participants next{
        .attempt = attempt, .nodes = {}, .known = rendezvous.known_members};
    for (const int rank : staying) {
      next.nodes.push_back(
          rendezvous.group.nodes.at(static_cast<size_t>(rank)));
    }
    form_group(rendezvous.store, options, next, deadline);
    rendezvous.known_members = next.known;
  }
  rendezvous.group =
      read_group(rendezvous.store, options, self, attempt, deadline);
  rendezvous.attempt = attempt;
}

}  // namespace lockstep::launch
