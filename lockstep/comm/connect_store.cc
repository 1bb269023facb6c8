// The store in which the ranks of a job meet: that of the agents of `lockstep
// run`, that of torchrun's agent, or one that rank 0 serves.
#include <algorithm>
#include <map>
#include <mutex>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/authenticated_store.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/store/secret_file.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;
using std::chrono::milliseconds;

// Time that a client tries one of several ports.
constexpr milliseconds kPortTimeout{2000};

std::string address(const Environment& environment) {
  return fmt::format("{} port {}", environment.master_addr,
                     fmt::join(environment.master_ports, ", "));
}

store::Identity identity_of(const Environment& environment) {
  return {.role = store::Role::kWorker,
          .run_id = environment.run_id,
          .name = fmt::format("{} (pid {})", host_name(), ::getpid()),
          .rank = environment.rank,
          .world_size = environment.world_size};
}

// Joins the store of the agents. The agent of this host wrote the address and
// the key into this worker's slot of the control block.
Store join_agents(const control::WorkerSlot& slot,
                  const Environment& environment, milliseconds timeout) {
  store::ClientOptions options;
  options.host = transport::text_of(slot.store.host);
  options.port = slot.store.port;
  options.who = identity_of(environment);
  options.who.run_id = env("TORCHELASTIC_RUN_ID").value_or("");
  options.who.round = static_cast<int>(slot.attempt.load()) - 1;
  options.key = store::Key(slot.store.key);
  options.who.incarnation = slot.store.incarnation;
  options.connect_time = timeout;
  // A rank does not give up before the agents do.
  options.answer_time =
      std::max(options.answer_time, milliseconds(slot.store.keep_alive_ms));
  return c10::make_intrusive<AuthenticatedStore>(
      std::make_shared<store::Client>(options), timeout);
}

// Joins the store of torchrun's agent, which does not authenticate clients.
Store join_torchruns(const Environment& environment, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_ports.at(0);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_addr,
                                               options);
  } catch (const std::exception& error) {
    throw CommError(
        {.code = ErrorCode::kStoreUnreachable,
         .what = fmt::format("rank {} can't reach the store at {}",
                             environment.rank, address(environment)),
         .got = first_line(text_of(error)),
         .fix = "check that torchrun's agent runs, MASTER_ADDR and "
                "MASTER_PORT"});
  }
}

// A process that asks for several worlds serves only one store.
struct ServedStores {
  std::mutex mutex;
  struct Served {
    std::weak_ptr<store::Server> server;
    int port = 0;
  };
  std::map<std::string, Served> by_job;
};

std::shared_ptr<store::Server> serve(const Environment& environment,
                                     const store::JobSecret& secret,
                                     int& port) {
  static auto* const stores = new ServedStores;
  const std::lock_guard lock(stores->mutex);
  auto& served = stores->by_job[environment.run_id];
  port = served.port;
  if (auto server = served.server.lock()) return server;
  const std::string interface = env("GLOO_SOCKET_IFNAME").value_or("");
  for (const uint16_t candidate : environment.master_ports) {
    port = candidate;
    auto listeners = store::listen_at(environment.master_addr, port, interface);
    if (listeners.empty()) continue;
    store::ServerOptions options;
    options.secret = secret;
    options.run_id = environment.run_id;
    auto server =
        std::make_shared<store::Server>(options, std::move(listeners));
    server->begin_round(0, environment.world_size);
    served = {.server = server, .port = port};
    return server;
  }
  throw CommError({.code = ErrorCode::kCannotListen,
                   .what = fmt::format("rank 0 can't serve the store at {}",
                                       address(environment)),
                   .got = "other programs that listen there",
                   .fix = "choose a free MASTER_PORT, or start the ranks with "
                          "`lockstep run`, which finds one"});
}

// Throws CommError if other hosts could not reach the store.
void check_reachable(const Environment& environment) {
  const bool is_one_host =
      environment.local_world_size == environment.world_size;
  if (is_one_host || env("GLOO_SOCKET_IFNAME") ||
      !store::is_loopback_name(environment.master_addr)) {
    return;
  }
  throw CommError(
      {.code = ErrorCode::kCannotListen,
       .what = "rank 0 can't serve the store to other hosts",
       .expected = "a name or an address by which they reach this host",
       .got = fmt::format("'{}', which here is loopback only",
                          environment.master_addr),
       .fix = "set MASTER_ADDR to an address of its interface on all ranks, "
              "and GLOO_SOCKET_IFNAME to the interface"});
}

Store serve_and_join(const Environment& environment, milliseconds timeout) {
  check_reachable(environment);
  const auto secret = store::shared_secret({}, environment.master_addr);
  int port = 0;
  auto server = serve(environment, secret, port);
  store::ClientOptions options;
  options.host = environment.master_addr;
  options.port = port;
  options.who = identity_of(environment);
  options.key = secret.key_of(options.who);
  return c10::make_intrusive<AuthenticatedStore>(
      std::make_shared<store::Client>(options), timeout, std::move(server));
}

// Tries the ports in turn, because another job may use one of them.
Store join_rank_0(const Environment& environment, milliseconds timeout) {
  const auto secret = store::shared_secret({}, environment.master_addr);
  const auto deadline = Clock::now() + timeout;
  store::ClientOptions options;
  options.host = environment.master_addr;
  options.who = identity_of(environment);
  options.key = secret.key_of(options.who);
  options.connect_time =
      environment.master_ports.size() == 1 ? timeout : kPortTimeout;
  std::string problem;
  do {
    for (const uint16_t port : environment.master_ports) {
      options.port = port;
      try {
        return c10::make_intrusive<AuthenticatedStore>(
            std::make_shared<store::Client>(options), timeout);
      } catch (const store::Unreachable& error) {
        if (problem.empty()) problem = text_of(error);
      } catch (const CommError& error) {
        problem = text_of(error);
        if (environment.master_ports.size() == 1) throw;
      }
    }
  } while (Clock::now() < deadline);
  throw CommError(
      {.code = ErrorCode::kStoreUnreachable,
       .what = fmt::format("rank {} found no store at {} in {} s",
                           environment.rank, address(environment),
                           static_cast<double>(timeout.count()) / 1e3),
       .expected = fmt::format("that of job '{}'", environment.run_id),
       .got = problem,
       .fix = "check that rank 0 runs, and MASTER_ADDR"});
}

}  // namespace

Store connect_store(const Environment& environment, milliseconds timeout) {
  if (const control::ControlBlock* block = control::control_block()) {
    const control::WorkerSlot& slot = block->slot(block->own_slot());
    if (slot.store.port != 0) return join_agents(slot, environment, timeout);
  }
  if (environment.has_agent_store) return join_torchruns(environment, timeout);
  return environment.rank == 0 ? serve_and_join(environment, timeout)
                               : join_rank_0(environment, timeout);
}

}  // namespace lockstep
