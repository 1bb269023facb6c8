#include "lockstep/launch/rendezvous/master.h"

#include "lockstep/base/error.h"
#include "lockstep/shm/fixed_text.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::launch {
namespace {

constexpr double kPublishTimeoutS = 60;
constexpr const char* kKey = "master";

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

Endpoint choose(const Rendezvous& rendezvous, const RunOptions& options,
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

}  // namespace

bool is_master_port_for_workers(const RunOptions& options) {
  return options.nodes == 1 && options.backend == Backend::kStatic &&
         options.endpoint.empty();
}

void check_master_port(const RunOptions& options) {
  if (!is_master_port_for_workers(options) || options.master_port == 0) return;
  with_free_port(options, {options.master_addr, options.master_port});
}

Endpoint begin_round(Rendezvous& rendezvous, const RunOptions& options,
                     int round) {
  rendezvous.store.begin_round(round, rendezvous.group.world_size());
  if (rendezvous.group.nodes.size() == 1)
    return choose(rendezvous, options, round);
  if (rendezvous.group.node_rank == 0) {
    const Endpoint master = choose(rendezvous, options, round);
    rendezvous.store.set(kKey, master.text());
    return master;
  }
  const auto text = rendezvous.store.get_unless(rendezvous.gone_key(0), kKey,
                                                kPublishTimeoutS);
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
    shm::set_text(access.host, address.host);
    access.port = address.port;
    access.key = rendezvous.store.worker_key(rank, round).bytes();
  }
}

void throw_port_in_use(const RunOptions& options, const Endpoint& endpoint) {
  throw LaunchError(
      {.code = ErrorCode::kCannotListen,
       .what = "the port of " + endpoint.text() + " is in use",
       .expected = "a free port for the job's store",
       .got = "another program that listens there",
       .fix = options.nodes == 1
                  ? "leave --master-port out: a free one is taken"
                  : "choose another --master-port on all nodes, and give only "
                    "one of them --node-rank 0"});
}

}  // namespace lockstep::launch
