#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/store/client.h"
#include "lockstep/store/server.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::store {

/// A store on a free port of loopback, and clients for it.
class Served {
 public:
  explicit Served(ServerOptions options = {}) : options_(std::move(options)) {
    options_.run_id = "job";
    auto listeners = listen_at("127.0.0.1", port_);
    server_ = std::make_unique<Server>(options_, std::move(listeners));
  }

  int port() const { return port_; }
  Server& server() { return *server_; }
  const JobSecret& secret() const { return options_.secret; }

  ClientOptions of(Identity who, int port = 0) const {
    who.run_id = who.run_id.empty() ? "job" : who.run_id;
    ClientOptions options;
    options.host = "127.0.0.1";
    options.port = port == 0 ? port_ : port;
    options.key = options_.secret.key_of(who);
    options.who = std::move(who);
    options.connect_time = std::chrono::seconds(20);
    return options;
  }

 private:
  ServerOptions options_;
  int port_ = 0;
  std::unique_ptr<Server> server_;
};

inline Token token_of(uint8_t number) {
  Token token{};
  token.fill(number);
  return token;
}

inline Identity agent(uint8_t number = 1) {
  return {.role = Role::kAgent,
          .run_id = "job",
          .name = "agent " + std::to_string(number),
          .token = token_of(number)};
}

inline Identity worker(int rank, int world_size = 2, int round = 0) {
  return {.role = Role::kWorker,
          .run_id = "job",
          .name = "worker",
          .token = token_of(static_cast<uint8_t>(100 + rank)),
          .rank = rank,
          .world_size = world_size,
          .round = round};
}

}  // namespace lockstep::store
