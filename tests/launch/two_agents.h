#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/launch/rendezvous/rendezvous.h"
#include "tests/store/forwarder.h"

namespace lockstep::launch {

inline void never_stop() {}

/// Returns a port that was free a moment ago. c10d's agents agree on who gets
/// it.
inline std::string free_endpoint() {
  Endpoint endpoint{"127.0.0.1", 0};
  const auto socket = listen_at(endpoint);
  return endpoint.text();
}

inline RunOptions two_nodes(const std::string& endpoint) {
  RunOptions options;
  options.nodes = 2;
  options.backend = Backend::kC10d;
  options.endpoint = endpoint;
  options.join_timeout_s = 60;
  options.keep_alive_s = 2;
  return options;
}

inline std::future<Rendezvous> join_beside(const RunOptions& options) {
  return std::async(std::launch::async,
                    [options] { return join_rendezvous(options, never_stop); });
}

/// Two agents that have met, in this process.
struct Pair {
  Pair() {
    auto beside = join_beside(options);
    agents.push_back(join_rendezvous(options, never_stop));
    agents.push_back(beside.get());
  }
  const RunOptions options = two_nodes(free_endpoint());
  std::vector<Rendezvous> agents;
};

/// Two agents that have met, with a network between the second one and the
/// store, which the first one serves.
struct PairOverNetwork {
  PairOverNetwork() {
    auto own = two_nodes(endpoint);
    own.is_host = true;
    auto beside = join_beside(own);
    auto other = two_nodes("127.0.0.1:" + std::to_string(network->port()));
    other.is_host = false;
    auto second = join_rendezvous(other, never_stop);
    agents.push_back(beside.get());
    agents.push_back(std::move(second));
  }
  const std::string endpoint = free_endpoint();
  std::unique_ptr<store::Forwarder> network =
      std::make_unique<store::Forwarder>(parse_endpoint("", endpoint, 0).port);
  std::vector<Rendezvous> agents;
};

}  // namespace lockstep::launch
