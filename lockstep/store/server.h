#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/identity.h"
#include "lockstep/store/message.h"

namespace lockstep::store {

struct ServerOptions {
  JobSecret secret = JobSecret::random();
  std::string run_id;
  Limits limits;
  size_t most_connections = 8192;
  /// Limit on connections that have not completed the handshake. Beyond it, the
  /// oldest is closed.
  size_t most_unauthenticated = 128;
  std::chrono::milliseconds handshake_time{3000};
  /// Time that an agent has to connect again after the network broke its
  /// connections. Then its last will is carried out.
  std::chrono::milliseconds reconnect_time{15'000};
  /// The same for an agent that closed its connections, as a process that ends
  /// does. A proxy between them may have closed them instead.
  std::chrono::milliseconds end_time{500};
};

/// The server of a job's store. Keys and values are in the memory of this
/// process. One thread serves them to the job's agents and workers.
///
/// A connection that does not prove the job's secret in time is closed. Until
/// then, it can send a few KiB. A client that proves it may read and
/// write keys, and nothing else. Agents and workers have separate tables, so a
/// worker can't name a key of the agents. When the next round begins, the
/// workers' table is cleared and their connections are closed.
///
/// A server is one incarnation of a job's store: clients that were connected to
/// another one are refused. A client whose connection breaks may connect again
/// and repeat its last request, which is executed only once.
class Server {
 public:
  /// Serves on the sockets of listen_at(). Throws CommError.
  Server(const ServerOptions& options, std::vector<FileDescriptor> listeners);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Works as Client::begin_round().
  void begin_round(int round, int world_size);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep::store
