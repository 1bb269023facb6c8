#include "lockstep/launch/rendezvous/rendezvous.h"

#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/store/secret_file.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr const char* kJobKey = "lockstep/job";
constexpr const char* kMasterKey = "master";
constexpr double kPublishTimeoutS = 60;
// Time for which node 0 tries to listen at its port. An agent that was started
// before at the same address may not have ended yet.
constexpr double kFreePortS = 5;

// All keys of a job have a prefix, so that a job does not read the keys of
// another job.
std::string prefix_of(const std::string& run_id) {
  return "lockstep/run/" + run_id + "/";
}

// Returns true if --master-port is only for the workers. With several nodes,
// the agents' store listens there.
bool is_master_port_for_workers(const RunOptions& options) {
  return options.nodes == 1 && options.backend == Backend::kStatic &&
         options.endpoint.empty();
}

[[noreturn]] void throw_port_in_use(const RunOptions& options,
                                    const Endpoint& endpoint) {
  throw LaunchError(
      {.code = ErrorCode::kCannotListen,
       .what = "the port of " + endpoint.text() + " is in use",
       .expected = "a free port for the job's store",
       .got = "another program that listens there",
       .fix = options.nodes == 1
                  ? "leave out --master-port to use a free one"
                  : "choose another --master-port on all nodes, and give only "
                    "one of them --node-rank 0"});
}

// Checks that the port is free now. The worker opens it a moment later.
Endpoint with_free_port(const RunOptions& options, Endpoint endpoint) {
  if (listen_at(endpoint).empty()) throw_port_in_use(options, endpoint);
  return endpoint;
}

// Returns the name by which the workers of other nodes reach this node.
std::string own_name(const Rendezvous& rendezvous, const RunOptions& options) {
  if (rendezvous.serves_store) return rendezvous.store.endpoint().host;
  if (!options.local_addr.empty()) return options.local_addr;
  return rendezvous.store.own_host();
}

Endpoint choose_master(const Rendezvous& rendezvous, const RunOptions& options,
                       int round) {
  if (is_master_port_for_workers(options)) {
    // Programs that use Lockstep do not need the port, so a running job does
    // not end because the port is in use.
    if (round > 0 && options.master_port != 0) {
      return {options.master_addr, options.master_port};
    }
    return with_free_port(options, {options.master_addr, options.master_port});
  }
  // The program itself chooses the address to listen at. Only the port must be
  // free, and a port that is free on loopback probably is.
  const int port = with_free_port(options, {store::loopback_host(), 0}).port;
  return {own_name(rendezvous, options), port};
}

// Throws LaunchError if the workers' port is in use.
void check_master_port(const RunOptions& options) {
  if (!is_master_port_for_workers(options) || options.master_port == 0) return;
  with_free_port(options, {options.master_addr, options.master_port});
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
  Joiner(const RunOptions& options, const CheckStop& check_stop,
         const store::Token& incarnation)
      : options_(options),
        incarnation_(incarnation),
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
                                  .name = self_.text(),
                                  .keep_alive_s = options_.keep_alive_s,
                                  .incarnation = incarnation_};
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
    if (incarnation_ != store::Token{}) return false;
    if (options_.nodes == 1) return true;
    if (options_.backend == Backend::kStatic) {
      return options_.node_rank.value_or(0) == 0;
    }
    return options_.is_host.value_or(is_this_host(endpoint_.host));
  }

  // Waits until the master's name can be resolved. A name server learns the
  // name of a new host only some time after its start.
  void wait_for_name() {
    while (store::resolve(endpoint_.host, endpoint_.port).empty()) {
      if (!std::exchange(has_told_name_, true)) {
        log_info("launch", fmt::format("waiting until the name '{}' can be "
                                       "resolved",
                                       endpoint_.host));
      }
      deadline_.pause_or_throw(
          {.code = ErrorCode::kStoreUnreachable,
           .what =
               fmt::format("the name '{}' can't be resolved", endpoint_.host),
           .expected = "the name or an address of node 0's host",
           .fix = "check --master-addr or --rdzv-endpoint, and the name "
                  "server"});
    }
  }

  JobStore reach_store(const JobStoreOptions& options) {
    for (;;) {
      // An agent that is told its interface can listen without the name.
      if (options_.interface.empty() || !should_serve()) wait_for_name();
      if (should_serve()) {
        auto listeners = listen_at(endpoint_, options_.interface);
        if (!listeners.empty()) {
          is_server_ = true;
          return {options, endpoint_, std::move(listeners)};
        }
        const bool may_join =
            options_.nodes > 1 && options_.backend == Backend::kC10d;
        if (!may_join) {
          if (options_.nodes == 1 || watch_.seconds() > kFreePortS) {
            throw_port_in_use(options_, endpoint_);
          }
          std::this_thread::sleep_for(Deadline::kPoll);
          continue;
        }
      }
      try {
        return {options, endpoint_};
      } catch (const store::Unreachable& error) {
        deadline_.pause_or_throw(
            {.code = ErrorCode::kStoreUnreachable,
             .what = "nothing listens at " + endpoint_.text(),
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
             .fix = "give both the same --rdzv-id, or use another port"});
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
  const store::Token incarnation_;
  Endpoint endpoint_;
  Node self_;
  bool is_server_ = false;
  bool has_told_name_ = false;
  const Stopwatch watch_;
  const Deadline deadline_;
};

}  // namespace

Rendezvous join_rendezvous(const RunOptions& options,
                           const CheckStop& check_stop,
                           const store::Token& incarnation) {
  return Joiner(options, check_stop, incarnation).join();
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

Endpoint begin_round(Rendezvous& rendezvous, const RunOptions& options,
                     int round) {
  try {
    rendezvous.store.begin_round(round, rendezvous.group.world_size());
  } catch (const CutOff&) {
    throw;
  } catch (const LaunchError& error) {
    if (!options.is_elastic()) throw;
    // The other nodes have begun a later round.
    throw CutOff({.code = ErrorCode::kRendezvousFailed,
                  .what = "the job continued without this node",
                  .got = std::string(error.text()),
                  .fix = "start its agent again to let it rejoin"});
  }
  if (rendezvous.group.nodes.size() == 1)
    return choose_master(rendezvous, options, round);
  if (rendezvous.group.node_rank == 0) {
    const Endpoint master = choose_master(rendezvous, options, round);
    rendezvous.store.set(kMasterKey, master.text());
    return master;
  }
  const auto text = rendezvous.store.get_unless(rendezvous.gone_key(0),
                                                kMasterKey, kPublishTimeoutS);
  if (text) return parse_endpoint("MASTER_ADDR of node 0", *text, 0);
  throw LaunchError(
      {.code = ErrorCode::kRendezvousFailed,
       .what = "node 0 did not publish MASTER_ADDR and MASTER_PORT",
       .expected = "an address and a port",
       .got = "nothing in time, or node 0 has ended",
       .fix = "see the messages of its agent"});
}

void grant_store_access(const Rendezvous& rendezvous,
                        const control::ControlBlock& block, int round) {
  const Endpoint& address = rendezvous.store.address();
  for (int local_rank = 0; local_rank < block.workers(); ++local_rank) {
    control::StoreAccess& access = block.slot(local_rank).store;
    const int rank = rendezvous.group.first_rank() + local_rank;
    access.host.fill(0);
    transport::set_text(access.host, address.host);
    access.port = address.port;
    access.key = rendezvous.store.worker_key(rank, round).bytes();
    access.incarnation = rendezvous.store.incarnation();
    access.keep_alive_ms =
        static_cast<uint32_t>(rendezvous.store.keep_alive_s() * 1000);
  }
}

}  // namespace lockstep::launch
