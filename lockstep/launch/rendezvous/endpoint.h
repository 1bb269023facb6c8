#pragma once

#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// Address at which a store listens.
struct Endpoint {
  std::string host;
  int port = 0;

  std::string text() const;  ///< "host:port", "[::1]:port"
};

/// Parses "host", "host:port" or "[::1]:port". Throws InvalidArgument naming
/// `option`.
Endpoint parse_endpoint(const std::string& option, const std::string& text,
                        int default_port);

/// Returns true if `host` is a name or an address of this machine.
bool is_this_host(const std::string& host);

/// Returns sockets that listen at `endpoint`, or no sockets if the port is in
/// use. A port of 0 is replaced by a free one. The sockets listen at the
/// addresses of this host that the name resolves to or, if it is given, at
/// those of `interface`, but never on all interfaces. Throws CommError.
std::vector<FileDescriptor> listen_at(Endpoint& endpoint,
                                      const std::string& interface = "");

/// Returns true if a process accepts connections at `endpoint`.
bool is_reachable(const Endpoint& endpoint, int timeout_ms);

}  // namespace lockstep::launch
