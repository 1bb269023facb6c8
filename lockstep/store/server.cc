#include "lockstep/store/server.h"

#include "lockstep/store/server_loop.h"

namespace lockstep::store {

Server::Server(const ServerOptions& options,
               std::vector<FileDescriptor> listeners)
    : loop_(std::make_unique<Loop>(options, std::move(listeners))) {}

Server::~Server() = default;

void Server::begin_round(int round, int world_size) {
  loop_->begin_round(round, world_size);
}

}  // namespace lockstep::store
