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
  /// Connections whose handshake is under way; one more closes the oldest.
  size_t most_unauthenticated = 128;
  std::chrono::milliseconds handshake_time{3000};
};

/// Keys and values for a job's agents and workers, in memory of this process,
/// served by a thread of its own.
///
/// Who doesn't prove the job's secret in time is closed and costs at most a
/// few KiB meanwhile; who does may read and write, and nothing that it sends
/// can do anything else. Agents and workers have keys of their own: a worker
/// can't even name those of the agents. Workers' keys are gone, and their
/// connections are closed, when the next round begins.
class Server {
 public:
  /// On sockets of listen_at(). Throws CommError.
  Server(const ServerOptions& options, std::vector<FileDescriptor> listeners);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// As a client's begin_round().
  void begin_round(int round, int world_size);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep::store
