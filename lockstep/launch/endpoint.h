#pragma once

#include <string>

#include "lockstep/launch/file_descriptor.h"

namespace lockstep::launch {

/// Where the job's store listens.
struct Endpoint {
  std::string host;
  int port = 0;

  std::string text() const;  ///< "host:port", "[::1]:port"
};

/// "host", "host:port", "[::1]:port". Throws InvalidArgument naming `option`.
Endpoint parse_endpoint(const std::string& option, const std::string& text,
                        int default_port);

/// Whether `host` is a name or an address of this machine.
bool is_this_host(const std::string& host);
std::string host_name();

/// A socket that listens at `endpoint`, whose port becomes a free one if it is
/// 0; closed if the port is taken. A loopback name is listened to on loopback
/// only; any other on all interfaces, since the name by which other nodes know
/// this one need not be an address of its own. Throws LaunchError.
FileDescriptor listen_at(Endpoint& endpoint);

/// Whether something listens at `endpoint`.
bool is_reachable(const Endpoint& endpoint, int timeout_ms);

}  // namespace lockstep::launch
