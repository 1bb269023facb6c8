#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/first_line.h"
#include "lockstep/comm/agent/link.h"
#include "lockstep/comm/launchers.h"
#include "lockstep/comm/world_impl.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;
using std::chrono::milliseconds;

constexpr const char* kJobKey = "lockstep/job";

std::string address(const Environment& environment) {
  return fmt::format("{} port {}", environment.master_addr,
                     fmt::join(environment.master_ports, ", "));
}

Store serve(const Environment& environment, milliseconds timeout) {
  std::string problem;
  for (const uint16_t port : environment.master_ports) {
    try {
      c10d::TCPStoreOptions options;
      options.port = port;
      options.isServer = true;
      options.waitWorkers = false;
      options.timeout = timeout;
      Store store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      store->set(kJobKey, environment.run_id);
      return store;
    } catch (const std::exception& error) {
      problem = first_line(error.what());
    }
  }
  throw CommError({.what = fmt::format("rank 0 can't serve the store at {}",
                                       address(environment)),
                   .got = problem,
                   .fix = "choose a free MASTER_PORT, or start the ranks with "
                          "`lockstep run`, which finds one"});
}

Store connect_to(const Environment& environment, uint16_t port,
                 milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
}

/// Tries the ports in turn, for another job may be at one of them.
Store connect_to_any(const Environment& environment, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string problem = "nothing answers";
  while (Clock::now() < deadline) {
    for (const uint16_t port : environment.master_ports) {
      try {
        auto store = connect_to(environment, port, milliseconds(2000));
        store->setTimeout(milliseconds(2000));
        const std::string job = store->get_to_str(kJobKey);
        if (job == environment.run_id) {
          store->setTimeout(timeout);
          return store;
        }
        problem = fmt::format("job '{}' is at port {}", job, port);
      } catch (const std::exception& error) {
        problem = first_line(error.what());
      }
    }
  }
  throw CommError(
      {.what = fmt::format("rank {} found no store at {} in {} s",
                           environment.rank, address(environment),
                           static_cast<double>(timeout.count()) / 1e3),
       .expected = fmt::format("that of job '{}'", environment.run_id),
       .got = problem,
       .fix = "check that rank 0 runs, and MASTER_ADDR"});
}

}  // namespace

Store connect_store(const Environment& environment, milliseconds timeout) {
  if (environment.rank == 0 && !environment.has_agent_store) {
    return serve(environment, timeout);
  }
  if (environment.master_ports.size() != 1) {
    return connect_to_any(environment, timeout);
  }
  try {
    return connect_to(environment, environment.master_ports[0], timeout);
  } catch (const std::exception& error) {
    throw CommError(
        {.what = fmt::format("rank {} can't reach the store at {}",
                             environment.rank, address(environment)),
         .got = first_line(error.what()),
         .fix = "check that rank 0 runs, and MASTER_ADDR and MASTER_PORT"});
  }
}

namespace {

// How many worlds there were before this one: its name, the same on all ranks.
// A process that goes on with the next attempt counts anew, as the processes
// that begin with it do.
int number_of_world(const std::string& run_id) {
  static std::mutex mutex;
  static std::map<std::string, int> worlds;
  const std::lock_guard lock(mutex);
  return worlds[run_id]++;
}

}  // namespace

World init(const WorldOptions& options) {
  const Environment environment = read_environment();
  if (environment.world_size == 1) return World();
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("lockstep/world {} of {}",
                  number_of_world(environment.run_id), environment.run_id),
      connect_store(environment, options.timeout));
  return World(std::make_shared<const World::Impl>(
      std::move(store), environment.rank, environment.world_size,
      environment.master_addr, options));
}

std::optional<World> init_next(const WorldOptions& options,
                               const std::string& why,
                               const std::function<bool()>& stop) {
  // No agent is that long about it: it ends workers that don't come.
  const double deadline_s = 600;
  std::string reason = why;
  while (const auto place = agent::wait_for_next(reason, stop, deadline_s)) {
    set_place(*place);
    try {
      return init(options);
    } catch (const CommError& error) {
      reason = error.what();  // another one was lost at once
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
