#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

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

/// A socket that listens at `endpoint`, whose port becomes a free one if it is
/// 0; closed if the port is taken. A loopback name is listened to on loopback
/// only; any other on all interfaces, since the name by which other nodes know
/// this one need not be an address of its own. Throws LaunchError.
FileDescriptor listen_at(Endpoint& endpoint);

/// Makes calls on this process's connections to `port` fail after `seconds`,
/// for a library that would wait for ever. There is no other way to its socket.
void limit_waits(int port, int seconds);

/// Whether something listens at `endpoint`.
bool is_reachable(const Endpoint& endpoint, int timeout_ms);

}  // namespace lockstep::launch
